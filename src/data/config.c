/* The "data" object of a recipe: defaults, table, checks, and what a synthetic task requires of its model. Tasks:
 * Leviathan, Kalman, Matias, arXiv 2410.02703, appendix A.1, and A.2 of its extended version. */
#include "data/config.h"
#include "base/misuse.h"
#include "data/span_corruption.h"

#define AT(member) offsetof(wn_data_config, member)
#define TEXT(member) .type = WN_FIELD_STRING, .offset = AT(member), .max = sizeof(((wn_data_config *)0)->member)

static const char *const kind_names[] = {"tokens", "variable_assignment", "copy", "parity", "span_corruption", NULL};
static const char *const rows_names[] = {"blocks", "document", NULL};

const struct wn_field wn_data_fields[] = {
    WN_KEY("kind", ENUM, AT(kind), "a token file or a synthetic task", .names = kind_names),
    {.key = "train", TEXT(train), .help = "token file to train on, or with * in its name shards (tokens)"},
    {.key = "val", TEXT(val), .help = "token file to evaluate on (tokens); empty: no evaluation"},
    {.key = "tokenizer",
     TEXT(tokenizer),
     .help = "bytes, a .model or tokenizer.json, a GGUF file or a folder; copied into the checkpoints' folder; empty: "
             "the one in data.train's folder"},
    WN_KEY("stream", BOOL, AT(stream), "a batch's sequences continue where they stopped (tokens)"),
    WN_KEY("pack", BOOL, AT(pack), "attention stays inside documents (tokens)"),
    WN_KEY("document_token", INT, AT(document_token), "token that starts a document; -1: the one in data.json, or none",
           .min = -1, .max = WN_LIMIT_VOCABULARY),
    WN_KEY("rows", ENUM, AT(rows),
           "blocks of the context, or one document a sequence, cut at the context or padded (tokens)",
           .names = rows_names),
    WN_KEY("long_only", BOOL, AT(long_only), "rows document: only documents that fill at least 90% of the context"),
    WN_KEY("variables", INT, AT(variables), "variable_assignment: names", .min = 1, .max = 1 << 16),
    WN_KEY("values", INT, AT(values), "variable_assignment and copy: different values", .min = 1, .max = 1 << 20),
    WN_KEY("assignments", INT, AT(assignments), "variable_assignment: pairs before the query", .min = 1,
           .max = 1 << 20),
    WN_KEY("eval_values", INT, AT(eval_values), "variable_assignment: values that evaluation draws from; 0: all",
           .min = 0, .max = 1 << 20),
    WN_KEY("noise_density", DOUBLE, AT(noise_density), "span_corruption: fraction of the tokens that is dropped",
           .min = 0.001, .max = 0.9),
    WN_KEY("mean_span", DOUBLE, AT(mean_span), "span_corruption: mean length of a dropped span", .min = 1, .max = 1000),
    WN_KEY("sentinels", INT, AT(sentinels), "span_corruption: last entries of the vocabulary, which mark spans",
           .min = 2, .max = 1 << 20),
    WN_KEY("input_length", INT64, AT(input_length),
           "span_corruption: tokens of the encoder's sequences; 0: model.encoder.context", .min = 0, .max = 1 << 24),
    WN_KEY("end_token", INT, AT(end_token),
           "span_corruption: token that ends a sequence; -1: the sentinel after the last span's", .min = -1,
           .max = WN_LIMIT_VOCABULARY),
    WN_KEY("start_token", INT, AT(start_token), "span_corruption: first token of the decoder's sequences", .min = 0,
           .max = WN_LIMIT_VOCABULARY),
    WN_KEY("max_length", INT, AT(max_length), "copy: longest string; parity: sequence length", .min = 1,
           .max = 1 << 20),
};
const int wn_data_field_count = (int)(sizeof wn_data_fields / sizeof *wn_data_fields);

void wn_data_config_init(wn_data_config *config) {
  *config = (wn_data_config){
      .kind = WN_DATA_TOKENS,
      .document_token = -1,
      .variables = 3,
      .values = 100,
      .assignments = 64,
      .noise_density = 0.15,
      .mean_span = 3,
      .sentinels = 100,
      .end_token = -1,
      .max_length = 24,
  };
}

wn_status wn_data_config_check(wn_context *ctx, const char *where, const wn_data_config *config) {
  if (config->pack && config->kind != WN_DATA_TOKENS)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"data.pack\" is for token files; \"data.kind\" is \"%s\"", where,
                   kind_names[config->kind]);
  if (config->rows == WN_ROWS_DOCUMENT && (config->kind != WN_DATA_TOKENS || config->pack || config->stream))
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "%s: \"data.rows\" \"document\" is for token files without \"data.pack\" and \"data.stream\"",
                   where);
  if (config->long_only && config->rows != WN_ROWS_DOCUMENT)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"data.long_only\" needs \"data.rows\" \"document\"", where);
  if (config->stream && (config->kind != WN_DATA_TOKENS || config->pack))
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"data.stream\" is for token files without \"data.pack\"", where);
  if (config->eval_values > config->values)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"data.eval_values\" is %d; it must be at most \"data.values\" (%d)", where,
                   config->eval_values, config->values);
  if (config->kind == WN_DATA_SPAN_CORRUPTION && config->input_length > 0) {
    int64_t text, target, noise, spans;
    if (config->input_length < 3)
      return wn_fail(ctx, WN_ERR_CONFIG,
                     "%s: \"data.input_length\" is %lld; a kept token, a sentinel and an end take 3", where,
                     (long long)config->input_length);
    wn_span_corruption_lengths(config->input_length, config->noise_density, config->mean_span, &text, &target);
    wn_span_corruption_noise(text, config->noise_density, config->mean_span, &noise, &spans);
    if (spans + 1 > config->sentinels)
      return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"data.sentinels\" is %d; %lld tokens of input need %lld", where,
                     config->sentinels, (long long)config->input_length, (long long)spans + 1);
  }
  if (config->kind == WN_DATA_PARITY && config->max_length < 2)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"data.max_length\" is %d; parity needs at least 2", where,
                   config->max_length);
  return WN_OK;
}

void wn_data_config_requirements(const wn_data_config *config, int64_t *vocab_size, int64_t *context) {
  WN_CHECK_OR(, WN_POINTER(config), WN_POINTER(vocab_size), WN_POINTER(context));
  *vocab_size = *context = 0;
  switch (config->kind) {
  case WN_DATA_TOKENS:
    return;
  case WN_DATA_VARIABLE_ASSIGNMENT: /* "Z=", 177, "Y=", 661, ..., and the query "Z=", whose target is the answer */
    *vocab_size = (int64_t)config->variables + config->values;
    *context = 2 * (int64_t)config->assignments + 1;
    return;
  case WN_DATA_COPY: /* start, string, separator, string again, end: the paper's 2n + 3 */
    *vocab_size = (int64_t)config->values + 3;
    *context = 2 * (int64_t)config->max_length + 3;
    return;
  case WN_DATA_PARITY: /* bits */
    *vocab_size = 2;
    *context = config->max_length;
    return;
  case WN_DATA_SPAN_CORRUPTION: /* tokens of the decoder; the vocabulary is the file's plus the sentinels */
    if (config->input_length > 0) {
      int64_t text;
      wn_span_corruption_lengths(config->input_length, config->noise_density, config->mean_span, &text, context);
    }
    return;
  }
}
