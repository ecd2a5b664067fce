/* winnow eval: loss, perplexity, accuracy and bits per byte of a checkpoint on a token file, a text or a task. */
#include "cmd.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/train.h>
#include "estimate.h"
#include "eval_answers.h"
#include "eval_tasks.h"
#include "load.h"
#include "rows.h"
#include "signals.h"
#include "files.h"
#include "together.h"

struct request {
  struct cli_common common;
  struct cli_loading load;
  struct cli_tasks tasks;
  struct cli_answers answers;
  const char *data, *text, *config, *split, *save_rows, *against;
  double margin;
  struct cli_list sets;
  struct cli_rows rows;
  wn_eval_options eval;
};

/* Bytes of the text of PATH/train.bin or PATH/val.bin, from the data.json that `winnow data prepare` wrote beside
 * it. */
static uint64_t eval_text_bytes(const char *token_file) {
  char path[4096];
  const char *slash = strrchr(token_file, '/'), *name = slash ? slash + 1 : token_file;
  const char *key = !strcmp(name, "train.bin")  ? "train"
                    : !strcmp(name, "val.bin")  ? "val"
                    : !strcmp(name, "test.bin") ? "test"
                                                : NULL;
  if (!key || snprintf(path, sizeof path, "%.*sdata.json", (int)(name - token_file), token_file) >= (int)sizeof path)
    return 0;
  json_t *j = cli_read_json(path);
  char flat[32];
  snprintf(flat, sizeof flat, "%s_bytes", key);
  json_t *value = json_object_get(j, flat);
  if (!value) value = json_object_get(json_object_get(j, key), "bytes");
  json_int_t bytes = json_integer_value(value);
  json_decref(j);
  return bytes > 0 ? (uint64_t)bytes : 0;
}

/* L N / sum of the layers' budgets (of a layer whose heads have budgets, the mean): memory without budgets divided by
 * memory with them. */
static double eval_saving(const wn_budgets *b, int64_t context) {
  const int64_t heads = b->heads > 0 ? b->heads : 1;
  double held = 0;
  for (int64_t i = 0; i < b->layers * heads; i++) {
    const int64_t K = wn_budgets_of(b, i / heads, i % heads);
    held += (double)(K < context ? K : context);
  }
  return (double)(b->layers * heads) * (double)context / held;
}

static json_t *eval_budgets_json(const wn_budgets *b, int64_t context) {
  json_t *tokens = json_array();
  for (int64_t l = 0; l < b->layers; l++) {
    json_t *layer = b->heads > 0 ? json_array() : json_integer(b->tokens[l]);
    for (int64_t h = 0; h < b->heads; h++) json_array_append_new(layer, json_integer(wn_budgets_of(b, l, h)));
    json_array_append_new(tokens, layer);
  }
  return json_pack("{s:s, s:o, s:f}", "policy", wn_policy_name(b->policy), "tokens", tokens, "saving",
                   eval_saving(b, context));
}

/* The loss minus that of the rows `base` of --against. */
static int eval_compare(const struct request *r, const wn_eval_rows *rows, const wn_eval_rows *base, wn_estimate *out) {
  if (!r->against) return 0;
  if (base->count == rows->count && wn_rows_difference(rows->sums, base->sums, base->count, out) == WN_OK) return 0;
  return cli_error("%s: these are %" PRId64 " rows of other data, or cut in another way, than the %" PRId64
                   " read here: differences are of the same rows",
                   r->against, base->count, rows->count);
}

static void eval_print_errors(const struct request *r, const wn_eval_result *result, const wn_estimate *difference) {
  const wn_estimate *e = &result->loss_rows;
  char rows[64];
  cli_estimate_rows(e->rows, result->unit, rows);
  if (e->rows < 2)
    printf("error          unknown: %s has none\n", rows);
  else
    printf("95%% interval   loss %.4f to %.4f, perplexity %.4f to %.4f; over %s%s\n", e->low, e->high, exp(e->low),
           exp(e->high), rows, strcmp(result->unit, "block") ? "" : ", taken as independent");
  if (!r->against) return;
  char error[96];
  const wn_verdict verdict = wn_estimate_verdict(difference, r->margin);
  printf("against        %+.6f%s nats: %s", difference->value, cli_estimate_interval(difference, 6, error),
         wn_verdict_name(verdict));
  printf(verdict == WN_VERDICT_EQUAL || verdict == WN_VERDICT_OPEN ? " within %g nats\n" : "\n", r->margin);
}

/* context: tokens per sequence. difference: from --against. */
static int eval_report(const struct request *r, const char *what, const wn_eval_result *result,
                       const wn_estimate *difference, const wn_budgets *budgets, int64_t context) {
  char error[3][32];
  if (r->common.json) {
    json_t *j = json_pack("{s:o, s:o, s:f, s:o, s:f, s:I, s:I, s:f, s:f, s:I}", "model", cli_text(r->load.model),
                          "data", cli_text(what), "loss", result->loss, "perplexity", cli_number(result->perplexity),
                          "accuracy", result->accuracy, "tokens", (json_int_t)result->tokens, "batches",
                          (json_int_t)result->batches, "seconds", result->seconds, "tokens_per_second",
                          result->tokens_per_second, "peak_resident_bytes", (json_int_t)cli_peak_resident());
    if (j && result->bits_per_byte > 0) {
      json_object_set_new(j, "bits_per_byte", json_real(result->bits_per_byte));
      json_object_set_new(j, "bytes", json_integer((json_int_t)result->bytes));
    }
    if (j) json_object_set_new(j, "workspace_bytes", json_integer((json_int_t)result->workspace_bytes));
    if (j && result->recurrence_bytes > 0)
      json_object_set_new(j, "memory_bytes", json_integer((json_int_t)result->recurrence_bytes));
    if (j && result->span > 0) json_object_set_new(j, "span", json_real(result->span));
    if (j && budgets->layers > 0) json_object_set_new(j, "budgets", eval_budgets_json(budgets, context));
    if (j) {
      const wn_estimate *e = &result->loss_rows;
      json_object_set_new(j, "unit", json_string(result->unit));
      json_object_set_new(j, "rows", json_integer((json_int_t)e->rows));
      cli_estimate_json(j, "loss", e);
      json_object_set_new(j, "perplexity_low", cli_number(exp(e->low)));
      json_object_set_new(j, "perplexity_high", cli_number(exp(e->high)));
      cli_estimate_json(j, "accuracy", &result->accuracy_rows);
    }
    if (j && r->against) {
      cli_estimate_json_whole(j, "difference", difference);
      json_object_set_new(j, "margin", json_real(r->margin));
      json_object_set_new(j, "verdict", json_string(wn_verdict_name(wn_estimate_verdict(difference, r->margin))));
    }
    return cli_print_json(j);
  }
  /* Of the perplexity and the bits per byte by the loss's, of which they are functions. */
  wn_estimate perplexity = result->loss_rows, bits = result->loss_rows;
  perplexity.error *= result->perplexity;
  bits.error *= result->bits_per_byte / result->loss;
  printf("loss           %.6f%s\n", result->loss, cli_estimate_error(&result->loss_rows, 1, 6, error[0]));
  printf("perplexity     %.4f%s\n", result->perplexity, cli_estimate_error(&perplexity, 1, 4, error[1]));
  printf("accuracy       %.4f%%%s\n", 100 * result->accuracy,
         cli_estimate_error(&result->accuracy_rows, 100, 4, error[2]));
  if (result->bits_per_byte > 0)
    printf("bits per byte  %.4f%s\n", result->bits_per_byte, cli_estimate_error(&bits, 1, 4, error[0]));
  eval_print_errors(r, result, difference);
  if (result->span > 0) printf("mean span      %.1f\n", result->span);
  if (result->recurrence_bytes > 0) printf("earlier blocks %s\n", cli_bytes((double)result->recurrence_bytes));
  if (budgets->layers > 0)
    printf("memory saving  %.2f (%s, %.1f of %" PRId64 " tokens per layer)\n", eval_saving(budgets, context),
           wn_policy_name(budgets->policy), (double)context / eval_saving(budgets, context), context);
  printf("tokens         %" PRIu64 "\ntokens/s       %.0f\npeak memory    %s\n", result->tokens,
         result->tokens_per_second, cli_bytes((double)cli_peak_resident()));
  return 0;
}

static int eval_text(wn_context *ctx, const struct request *r, const struct cli_loaded *in, wn_eval_result *result) {
  char *text = NULL;
  size_t bytes = 0;
  int code = cli_read_plain(ctx, in->model, r->text, &text, &bytes);
  if (!code) {
    const wn_status status = wn_eval_text(ctx, in->model, in->tok, text, bytes, &r->eval, result);
    if (status == WN_ERR_CANCELLED)
      code = cli_fail(ctx, status);
    else if (status != WN_OK)
      code = cli_error("%s: %s", r->text, wn_context_error(ctx));
  }
  wn_text_free(text);
  return code;
}

/* Evaluates a token file, or the data of a recipe: that of --config, the checkpoint's own recipe.json, or the defaults;
 * then --set. */
static int eval_source(wn_context *ctx, struct request *r, wn_model *model, wn_eval_result *result, char *what,
                       size_t what_bytes) {
  char kept[CLI_PATH_BYTES];
  const char *path = cli_recipe_of(r->config, r->load.model, kept);
  wn_recipe recipe;
  wn_recipe_init(&recipe);
  if (path || r->sets.count) {
    int code = cli_recipe_load(ctx, path, &r->sets, &recipe);
    if (code) return code;
  }
  wn_data_config *data = &recipe.data;
  const char *split = r->split;
  if (r->data) {
    if (data->kind != WN_DATA_TOKENS && data->kind != WN_DATA_SPAN_CORRUPTION) {
      wn_recipe plain;
      wn_recipe_init(&plain);
      *data = plain.data;
      data->kind = WN_DATA_TOKENS;
    }
    if (strlen(r->data) >= sizeof data->val) return cli_error("%s: the path is too long", r->data);
    snprintf(data->val, sizeof data->val, "%s", r->data);
    split = "val";
  }
  if (data->kind == WN_DATA_TOKENS || data->kind == WN_DATA_SPAN_CORRUPTION) {
    const char *file = strcmp(split, "train") ? data->val : data->train;
    if (!*file)
      return cli_usage_error("winnow eval", "nothing to evaluate on: give --data, --text or a task with --set");
    snprintf(what, what_bytes, "%s", file);
  } else {
    snprintf(what, what_bytes, "task (%s)", split);
  }
  const wn_model_config *config = wn_model_config_get(model);
  if (data->kind == WN_DATA_TOKENS) data->stream = r->eval.recurrence ? r->eval.recurrence > 0 : config->recurrence > 0;
  const int code = cli_rows_apply(ctx, "winnow eval", &r->rows, r->load.tokenizer, r->load.model, data);
  if (code) return code;
  /* Only for blocks, which contain every token: documents may be cut or left out. */
  if (!r->eval.bytes && !r->eval.max_batches && data->kind == WN_DATA_TOKENS && data->rows == WN_ROWS_BLOCKS)
    r->eval.bytes = eval_text_bytes(!strcmp(split, "train") ? data->train : data->val);
  int64_t context = r->eval.context ? r->eval.context : config->context;
  wn_data_source *source = NULL;
  wn_status status = wn_data_source_create(ctx, data, split, context, (int32_t)config->vocab_size, &source);
  if (status == WN_OK && data->kind == WN_DATA_TOKENS)
    cli_tokens_check(ctx, !strcmp(split, "val") ? data->val : data->train, r->load.model, model);
  if (status == WN_OK) status = wn_eval(ctx, model, source, &r->eval, result);
  wn_data_source_destroy(source);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}

static const struct cli_option eval_options[] = {
    CLI_MODEL_OPTION(struct request, load.model),
    CLI_CHECK_OPTION(struct request, load.check),
    CLI_WEIGHTS_OPTION(struct request, load.weights),
    CLI_ADAPTER_OPTION(struct request, load.adapter),
    CLI_OPTION(struct request, data, "data", "FILE", "a token file (.bin); with --task a folder"),
    CLI_OPTION(struct request, text, "text", "FILE", "a text; - is standard input"),
    CLI_OPTION(struct request, load.tokenizer, "tokenizer", "SPEC",
               "for --text: " CLI_TOKENIZER_HELP "; else the model's own"),
    CLI_OPTION(struct request, config, "config", "FILE", "a recipe whose data to use; else the checkpoint's"),
    CLI_OPTION(struct request, sets, "set", "KEY=VALUE", "changes one key of that recipe, such as data.kind=copy"),
    CLI_TASKS_OPTIONS(struct request, tasks),
    CLI_ANSWERS_OPTIONS(struct request, answers),
    CLI_OPTION(struct request, split, "split", "NAME", "the split of the recipe's data", .choices = "val|train"),
    CLI_OPTION(struct request, eval.batch, "batch", "N",
               "sequences at a time; 0: 8; with --task tokens of questions, 0: 512", .min = 0, .max = 1 << 20),
    CLI_OPTION(struct request, eval.context, "context", "N", "tokens per sequence; 0: the model's context", .min = 0,
               .max = 1 << 24),
    CLI_OPTION(struct request, eval.recurrence, "memory", "N",
               "segment recurrence: tokens of earlier blocks that attention reaches; 0: the model's; -1: none",
               .min = -1, .max = 1 << 24),
    CLI_OPTION(struct request, eval.whole_recurrence, "whole-memory", NULL,
               "recurrence caches and reads all tokens, also those that no head can see: for comparison"),
    CLI_OPTION(struct request, eval.max_batches, "max-batches", "N",
               "the most batches to run, with rows spread evenly over the file; 0: all of a file, 16 of a task"),
    CLI_OPTION(struct request, eval.bytes, "bytes", "N",
               "bytes of text in --data, for bits per byte; else from data.json in its folder"),
    CLI_ROWS_OPTIONS(struct request, rows),
    CLI_OPTION(struct request, save_rows, "save-rows", "FILE",
               "write each row's tokens, summed loss and hits (CSV), for --against of another evaluation"),
    CLI_OPTION(
        struct request, against, "against", "FILE",
        "rows that --save-rows wrote for another model or other budgets: the difference of the losses, paired row "
        "by row"),
    CLI_OPTION(struct request, margin, "margin", "NATS",
               "--against: two losses are called equal where the interval of their difference lies within it", .min = 0,
               .max = 100),
    CLI_OPTION(struct request, eval.seed, "seed", "N", "seed of a task's random cases"),
    CLI_ATTENTION_OPTIONS(struct request, load.attention),
    CLI_BUDGETS_OPTIONS(struct request, load.budgets),
    CLI_CACHE_OPTION(struct request, load.budgets),
    CLI_COMMON_OPTIONS(struct request, common)};

static const struct cli_spec eval_spec = {
    .command = "winnow eval",
    .summary =
        "Loss (nats per token), perplexity, accuracy and bits per byte of a checkpoint. Without --data and --text\n"
        "it uses the data of the recipe that the checkpoint was trained with. With --budgets the result is that of\n"
        "decoding under them, for each sequence and document separately. With --task it answers questions, scored as\n"
        "lm-evaluation-harness does; with --answers it writes answers, compared with references. After +- stands the\n"
        "standard error over rows (blocks of the context, documents, questions), never over tokens.",
    CLI_TABLE(eval_options),
    CLI_OPTIONAL("[DIR]"),
    .epilog = "Recipe keys, for --config and --set: winnow train --help",
    .more_help = cli_tasks_help};

static int eval_run(wn_context *ctx, struct request *r, struct cli_loaded *in) {
  if (r->answers.file) return cli_answers_run(ctx, &r->common, &r->answers, &r->load, in, r->tasks.limit);
  if (cli_tasks_wanted(&r->tasks))
    return cli_tasks_run(ctx, &r->common, &r->tasks, r->data, &r->load, in, r->eval.context, r->eval.batch);
  struct cli_progress bar;
  wn_eval_result result = {0};
  wn_eval_rows rows = {0}, base = {0};
  wn_estimate difference = {0};
  char what[2048] = "";
  int code = r->against ? cli_rows_read(ctx, r->against, &base) : 0;
  if (code) return code;
  cli_progress_begin(&bar, &r->common, "eval", "batches");
  wn_eval_options *eval = &r->eval;
  eval->budgets = in->budgets.layers > 0 ? &in->budgets : NULL;
  eval->progress = cli_progress_on;
  eval->user = &bar;
  eval->rows = &rows;
  cli_signals_begin(ctx);
  if (r->text) {
    snprintf(what, sizeof what, "%s", r->text);
    code = eval_text(ctx, r, in, &result);
  } else {
    code = eval_source(ctx, r, in->model, &result, what, sizeof what);
  }
  cli_signals_end();
  cli_progress_end(&bar);
  const bool speaks = cli_together_speaks(ctx);
  if (!code && speaks && r->save_rows) code = cli_rows_save(ctx, r->save_rows, &rows);
  if (!code) code = eval_compare(r, &rows, &base, &difference);
  wn_eval_rows_clear(&rows);
  free(base.sums);
  if (code) return code;
  return eval_report(r, what, &result, &difference, &in->budgets,
                     r->eval.context ? r->eval.context : wn_model_config_get(in->model)->context);
}

/* Options that exclude each other: CLI_GO, or 2 after reporting. */
static int eval_check(const struct request *r) {
  const bool tasks = cli_tasks_wanted(&r->tasks), document = r->rows.long_only || r->rows.document >= 0;
  const struct {
    bool wrong;
    const char *what;
  } rules[] = {
      {r->data && r->text, "--data and --text exclude each other"},
      {document && (r->text || tasks), "--long-only is for token files: it goes with neither --text nor --task"},
      {r->text && tasks, "--text goes with neither --task nor --choices"},
      {(r->save_rows || r->against) && tasks, "--save-rows and --against are for losses: a task has --log and --sweep"},
      {r->answers.file && (r->data || r->text || tasks || r->config || r->sets.count),
       "--answers goes with none of --data, --text, --task, --choices, --config and --set"},
      {r->answers.file &&
           (r->save_rows || r->against || document || r->eval.context || r->eval.batch || r->eval.max_batches),
       "--answers goes with none of --save-rows, --against, --long-only, --context, --batch and "
       "--max-batches"},
      {r->answers.grid && (r->load.budgets.spec || r->load.budgets.policy),
       "--grid has budgets and policies of its own: it goes with neither --budgets nor --policy"},
  };
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
    if (rules[i].wrong) return cli_usage_error(eval_spec.command, "%s", rules[i].what);
  return CLI_GO;
}

int cmd_eval(int argc, char **argv) {
  struct request r = {.common = CLI_COMMON_DEFAULTS,
                      .split = "val",
                      .margin = 0.01,
                      .rows = CLI_ROWS_DEFAULTS,
                      .eval.size = sizeof(wn_eval_options),
                      .load = CLI_LOADING_DEFAULTS};
  struct cli_loaded in = {0};
  wn_context *ctx = NULL;
  int code = cli_parse_model(&eval_spec, argc, argv, &r, true, &r.load.model);
  if (code == CLI_GO) code = eval_check(&r);
  if (code == CLI_GO) code = cli_check_output(r.save_rows, false);
  if (code == CLI_GO) code = cli_answers_check(eval_spec.command, &r.answers);
  if (code == CLI_GO) code = cli_tasks_check(eval_spec.command, &r.tasks, r.data, r.answers.file);
  if (code == CLI_GO) code = cli_sweep_check(eval_spec.command, &r.tasks, &r.load.budgets);
  if (code == CLI_GO) code = cli_together_open(&r.common, &ctx);
  /* A token file needs no tokenizer. */
  const bool reads = r.text || r.answers.file || cli_tasks_wanted(&r.tasks);
  if (!code) code = cli_load(ctx, eval_spec.command, &r.common, &r.load, reads, &in);
  if (!code) code = eval_run(ctx, &r, &in);
  cli_loaded_clear(&in);
  cli_together_close(ctx, code);
  cli_list_clear(&r.load.attention.sets);
  cli_list_clear(&r.answers.stop);
  cli_list_clear(&r.sets);
  return code;
}
