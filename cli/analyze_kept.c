/* winnow analyze kept: reads a context, compresses it, and tells which tokens each key-value head keeps; and what the
 * model answers to a question behind it. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <winnow/generate.h>
#include "analyze.h"
#include "files.h"
#include "load.h"

struct kept {
  struct cli_common common;
  struct cli_loading load;
  const char *ids, *question;
  int64_t tokens, top;
  double ratio;
  bool ratio_given;
};

struct kept_run {
  wn_context *ctx;
  struct cli_loaded in;
  wn_session *session;
  int32_t *ids, *question;
  int64_t count, questions;
};

/* Tokens as numbers, separated by blanks. */
static int kept_read_ids(wn_context *ctx, const char *path, int32_t **out, int64_t *count) {
  char *text = NULL;
  size_t bytes;
  if (cli_read_text(ctx, path, &text, &bytes)) return 1;
  *count = 0;
  *out = malloc((bytes / 2 + 1) * sizeof **out);
  int code = *out ? 0 : cli_error("out of memory");
  for (const char *at = text; !code; (*count)++) {
    char *end;
    at += strspn(at, " \t\r\n");
    if (!*at) break;
    errno = 0;
    const long id = strtol(at, &end, 10);
    if (end == at || errno || id < 0 || id > INT32_MAX || (*end && !strchr(" \t\r\n", *end)))
      code = cli_error("%s: number %" PRId64 ": expected a token's id", path, *count + 1);
    else
      (*out)[*count] = (int32_t)id;
    at = end;
  }
  wn_text_free(text);
  return code ? code : *count > 0 ? 0 : cli_error("%s: expected tokens' ids, found none", path);
}

static json_t *kept_positions(struct kept_run *k, wn_status *status) {
  const wn_model_config *c = wn_model_config_get(k->in.model);
  int32_t *at = malloc((size_t)k->count * sizeof *at);
  json_t *layers = json_array();
  for (int64_t l = 0; l < c->layers && at; l++) {
    json_t *heads = json_array();
    for (int64_t h = 0; h < c->kv_heads && *status == WN_OK; h++) {
      json_t *list = json_array();
      int64_t n = 0;
      *status = wn_session_kept(k->ctx, k->session, 0, l, h, at, &n);
      for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(at[i]));
      json_array_append_new(heads, list);
    }
    json_array_append_new(layers, heads);
  }
  free(at);
  return layers;
}

/* The `top` largest of logits [V], largest first, as pairs [id, logit]. */
static json_t *kept_top(const float *logits, int64_t V, int64_t top) {
  json_t *list = json_array();
  double limit = HUGE_VAL;
  int64_t last = -1;
  for (int64_t i = 0; i < top && i < V; i++) {
    int64_t best = -1;
    for (int64_t v = 0; v < V; v++) {
      const bool comes = logits[v] < limit || (logits[v] == limit && v > last);
      if (comes && (best < 0 || logits[v] > logits[best])) best = v;
    }
    if (best < 0) break;
    limit = logits[last = best];
    json_array_append_new(list, json_pack("[I,f]", (json_int_t)best, limit));
  }
  return list;
}

/* Reads the question, and answers greedily. */
static wn_status kept_answer(const struct kept *r, struct kept_run *k, json_t *out) {
  const int64_t V = wn_model_config_get(k->in.model)->vocab_size;
  float *logits = malloc((size_t)V * sizeof *logits);
  json_t *answer = json_array();
  if (!logits) return WN_ERR_MEMORY;
  wn_status status = wn_session_feed(k->ctx, k->session, k->question, k->questions, 0, logits);
  if (status == WN_OK && r->top > 0) json_object_set_new(out, "top", kept_top(logits, V, r->top));
  for (int64_t i = 0; i < r->tokens && status == WN_OK; i++) {
    int32_t best = 0;
    for (int64_t v = 1; v < V; v++)
      if (logits[v] > logits[best]) best = (int32_t)v;
    json_array_append_new(answer, json_integer(best));
    if (i + 1 < r->tokens) status = wn_session_feed(k->ctx, k->session, &best, 1, 0, logits);
  }
  json_object_set_new(out, "answer", answer);
  free(logits);
  return status;
}

static int kept_run(struct kept *r, struct kept_run *k) {
  int code = cli_load(k->ctx, "winnow analyze kept", &r->common, &r->load, false, &k->in);
  if (!code) code = cli_tokenizer_to_repeat(k->ctx, &k->in.budgets, r->load.model, k->in.model, &k->in.tok);
  if (!code) code = kept_read_ids(k->ctx, r->ids, &k->ids, &k->count);
  if (!code && r->question) code = kept_read_ids(k->ctx, r->question, &k->question, &k->questions);
  if (!code) code = cli_session_open(k->ctx, &k->in, k->count + k->questions + r->tokens, &k->session);
  if (code) return code;
  json_t *out = json_object();
  wn_status status = k->in.tok ? wn_session_repeat_with(k->ctx, k->session, k->in.tok, NULL) : WN_OK;
  if (status == WN_OK) status = wn_session_read_context(k->ctx, k->session, k->ids, k->count, NULL);
  if (status == WN_OK) json_object_set_new(out, "kept", kept_positions(k, &status));
  if (status == WN_OK) {
    const size_t bytes = wn_session_kv_bytes(k->session), peak = wn_session_peak_bytes(k->session);
    json_object_set_new(out, "tokens", json_integer(k->count));
    json_object_set_new(out, "bytes", json_integer((json_int_t)bytes));
    json_object_set_new(out, "peak_bytes", json_integer((json_int_t)peak));
    if (!r->common.json)
      printf("%" PRId64 " tokens read and compressed to %zu bytes; at most %zu at a time\n", k->count, bytes, peak);
  }
  if (status == WN_OK && k->question) status = kept_answer(r, k, out);
  if (status == WN_OK && r->common.json) return cli_print_json(out);
  json_decref(out);
  return status == WN_OK ? 0 : cli_fail(k->ctx, status);
}

int analyze_kept(int argc, char **argv) {
  static const struct cli_option options[] = {
      CLI_MODEL_OPTION(struct kept, load.model),
      CLI_CHECK_OPTION(struct kept, load.check),
      CLI_OPTION(struct kept, ids, "ids", "FILE", "the context: tokens' ids, separated by blanks", .required = true),
      CLI_OPTION(struct kept, question, "question", "FILE", "what follows, likewise; its last token's logits are told"),
      CLI_OPTION(struct kept, tokens, "tokens", "N", "with --question: tokens of a greedy answer", .min = 0,
                 .max = 1 << 20),
      CLI_OPTION(struct kept, top, "top", "N", "with --question: the largest logits after it", .min = 0, .max = 1000),
      CLI_OPTION(struct kept, ratio, "ratio", "R", "the part that is evicted: --budgets with the rest as a share",
                 .min = 0, .max = 1, .given = offsetof(struct kept, ratio_given)),
      CLI_BUDGETS_OPTIONS(struct kept, load.budgets),
      CLI_CACHE_OPTION(struct kept, load.budgets),
      CLI_COMMON_OPTIONS(struct kept, common)};
  static const struct cli_spec spec = {
      .command = "winnow analyze kept",
      .summary = "Reads a context and compresses it (--when prompt): which tokens each key-value head keeps, and the\n"
                 "bytes; with a question also what follows.",
      CLI_TABLE(options),
      CLI_OPTIONAL("[DIR]")};
  struct kept r = {.common = CLI_COMMON_DEFAULTS, .load = CLI_LOADING_DEFAULTS, .top = 10};
  struct kept_run k = {0};
  char share[64];
  int code = cli_parse_model(&spec, argc, argv, &r, true, &r.load.model);
  if (code == CLI_GO && r.ratio_given && r.load.budgets.spec)
    code = cli_usage_error(spec.command, "--ratio and --budgets exclude each other");
  if (code == CLI_GO && r.ratio_given) {
    snprintf(share, sizeof share, "%.15g%%", (1 - r.ratio) * 100);
    r.load.budgets.spec = share;
  }
  if (code == CLI_GO) code = cli_budgets_check(spec.command, &r.load.budgets);
  if (code == CLI_GO) code = cli_context_open(&r.common, &k.ctx);
  if (code == CLI_GO) code = kept_run(&r, &k);
  wn_session_destroy(k.session);
  free(k.ids);
  free(k.question);
  cli_loaded_clear(&k.in);
  cli_list_clear(&r.load.attention.sets);
  wn_context_destroy(k.ctx);
  return code;
}
