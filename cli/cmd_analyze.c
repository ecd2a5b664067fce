/* winnow analyze: what a model attends to. The table at the end has a row for each subcommand. */
#include "analyze.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "attention.h"
#include "cmd.h"
#include "load.h"
#include "recipe.h"
#include "signals.h"
#include "files.h"
#include "ui.h"

void analysis_close(struct analysis *a) {
  wn_data_source_destroy(a->source);
  wn_tokenizer_destroy(a->tok);
  wn_text_free(a->content);
  wn_model_destroy(a->model);
  wn_context_destroy(a->ctx);
}

wn_status analysis_tokenizer(struct analysis *a) {
  return a->tok ? WN_OK : wn_tokenizer_load(a->ctx, a->tokenizer ? a->tokenizer : a->model_dir, &a->tok);
}

/* Makes inputs like those that the encoder was trained on: spans are dropped as the checkpoint's recipe says, or by the
 * defaults. */
static int analysis_inputs(const struct analysis *a, wn_recipe *recipe) {
  char path[4096];
  const struct cli_list none = {0};
  if (!wn_model_config_get(a->model)->encoder.selective)
    return cli_error("%s: the model has no selective encoder (model.encoder.selective)", a->model_dir);
  if (a->rows.long_only || a->rows.document >= 0)
    return cli_usage_error(a->command, "--encoder reads stretches of the token file: not with --long-only");
  if (cli_join(path, sizeof path, a->model_dir, "recipe.json") && cli_exists(path)) {
    const int code = cli_recipe_load(a->ctx, path, &none, recipe);
    if (code) return code;
  }
  recipe->data.kind = WN_DATA_SPAN_CORRUPTION;
  recipe->data.input_length = a->context ? a->context : wn_model_config_get(a->model)->encoder.context;
  return 0;
}

/* Opens the source of --data. */
static int analysis_open_data(struct analysis *a) {
  const wn_model_config *config = wn_model_config_get(a->model);
  wn_recipe recipe;
  wn_recipe_init(&recipe);
  if (a->encoder) {
    const int bad = analysis_inputs(a, &recipe);
    if (bad) return bad;
  } else {
    recipe.data.kind = WN_DATA_TOKENS;
    recipe.data.stream = a->recurrence ? a->recurrence > 0 : config->recurrence > 0;
  }
  if (strlen(a->data) >= sizeof recipe.data.val) return cli_error("%s: the path is too long", a->data);
  snprintf(recipe.data.val, sizeof recipe.data.val, "%s", a->data);
  const int code = cli_rows_apply(a->ctx, a->command, &a->rows, a->tokenizer, a->model_dir, &recipe.data);
  if (code) return code;
  const wn_status status =
      wn_data_source_create(a->ctx, &recipe.data, "val", a->context && !a->encoder ? a->context : config->context,
                            (int32_t)config->vocab_size, &a->source);
  if (status != WN_OK) return cli_fail(a->ctx, status);
  cli_tokens_check(a->ctx, a->data, a->model_dir, a->model);
  return 0;
}

int analysis_open(struct analysis *a, const struct cli_spec *spec, int argc, char **argv, void *into) {
  struct cli_list dirs = {0};
  a->command = spec->command;
  int code = cli_parse(spec, argc, argv, into, &dirs);
  code = cli_model_argument(spec, code, true, &dirs, &a->model_dir);
  if (code == CLI_GO && a->text && a->data)
    code = cli_usage_error(spec->command, "--data and --text exclude each other");
  if (code == CLI_GO && (a->rows.long_only || a->rows.document >= 0) && !a->data)
    code = cli_usage_error(spec->command, "--long-only needs --data, a token file");
  if (code == CLI_GO && a->common.json && a->csv && !strcmp(a->csv, "-"))
    code = cli_usage_error(spec->command, "--json and --csv - both want standard output");
  if (code == CLI_GO && a->out && !strcmp(a->out, "-"))
    code = cli_usage_error(spec->command, "--out: expected a file; --json prints it");
  if (code == CLI_GO) code = analysis_apart(a, "csv", a->csv, "out", a->out);
  if (code == CLI_GO) code = cli_check_output(a->csv, true);
  if (code == CLI_GO) code = cli_check_output(a->out, true);
  if (code == CLI_GO) code = cli_context_open(&a->common, &a->ctx);
  if (code) return code;
  wn_status status = cli_model_load(a->ctx, a->model_dir, a->check, NULL, NULL, &a->model);
  if (status != WN_OK) return cli_fail(a->ctx, status);
  a->eval = (wn_eval_options){.size = sizeof(wn_eval_options),
                              .batch = a->batch,
                              .context = a->context,
                              .recurrence = a->recurrence,
                              .max_batches = a->max_batches,
                              .progress = cli_progress_on,
                              .user = &a->bar};
  if (a->text) {
    status = analysis_tokenizer(a);
    if (status != WN_OK) return cli_fail(a->ctx, status);
    code = cli_read_plain(a->ctx, a->model, a->text, &a->content, &a->bytes);
  }
  return code || !a->data ? code : analysis_open_data(a);
}

/* Do both paths have one name in one folder? */
static bool analysis_same_name(const char *a, const char *b) {
  const char *slash_a = strrchr(a, '/'), *slash_b = strrchr(b, '/');
  char folder[4096];
  struct stat x, y;
  if (strcmp(slash_a ? slash_a + 1 : a, slash_b ? slash_b + 1 : b)) return false;
  snprintf(folder, sizeof folder, "%.*s.", slash_a ? (int)(slash_a + 1 - a) : 0, a);
  if (stat(folder, &x)) return false;
  snprintf(folder, sizeof folder, "%.*s.", slash_b ? (int)(slash_b + 1 - b) : 0, b);
  return stat(folder, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Would two paths be one regular file? */
static bool analysis_same_file(const char *a, const char *b) {
  struct stat x, y;
  const bool there = stat(a, &x) == 0;
  if (there && !S_ISREG(x.st_mode)) return false; /* /dev/null, a pipe */
  return analysis_same_name(a, b) || (there && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
}

int analysis_apart(const struct analysis *a, const char *option, const char *path, const char *other,
                   const char *other_path) {
  if (!path || !other_path || !analysis_same_file(path, other_path)) return 0;
  return cli_usage_error(a->command, "--%s and --%s are one file: %s", option, other, path);
}

int analysis_plot(const struct analysis *a, const char *option, const char *path) {
  if (path && !strcmp(path, "-")) return cli_usage_error(a->command, "--%s: expected a file", option);
  int code = cli_check_output(path, false);
  if (!code) code = analysis_apart(a, option, path, "csv", a->csv);
  return code ? code : analysis_apart(a, option, path, "out", a->out);
}

/* Writes a file with the text that `put` prints. */
static int analysis_write_file(const struct analysis *a, const char *path, void (*put)(FILE *f, const void *what),
                               const void *what) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  if (!f) return cli_error("out of memory");
  put(f, what);
  const bool whole = !ferror(f);
  const wn_status status = fclose(f) || !whole ? WN_ERR_MEMORY : wn_file_save(a->ctx, path, text, bytes);
  free(text);
  return status == WN_OK ? 0 : cli_fail(a->ctx, status);
}

wn_analysis_input analysis_input(const struct analysis *a) {
  return (wn_analysis_input){
      .source = a->source, .tok = a->tok, .text = a->content, .bytes = a->bytes, .options = &a->eval};
}

int analysis_needs_text(const struct analysis *a) {
  return a->text || a->data ? 0 : cli_usage_error(a->command, "a text is needed: --text or --data");
}

void analysis_begin(struct analysis *a, const char *label, const char *unit) {
  cli_progress_begin(&a->bar, &a->common, label, unit);
  cli_signals_begin(a->ctx);
}

wn_status analysis_ended(struct analysis *a, wn_status status) {
  cli_signals_end();
  cli_progress_end(&a->bar);
  return status;
}

int analysis_end(const struct analysis *a, wn_status status) {
  if (status == WN_OK) return 0;
  if (status != WN_ERR_CANCELLED) return cli_error("%s: %s", a->model_dir, wn_context_error(a->ctx));
  cli_error("interrupted");
  return CLI_INTERRUPTED;
}

static int analysis_taus_error(const struct analysis *a, const char *text) {
  return cli_usage_error(a->command, "--taus \"%s\": expected ascending numbers in (0,1], as 0.5:1:0.05 or 0.5,0.9,1",
                         text);
}

int analysis_taus(const struct analysis *a, const char *text, double *taus, int *count) {
  const int room = *count;
  char *end;
  double first = strtod(text, &end);
  *count = 0;
  if (end == text) return analysis_taus_error(a, text);
  if (*end == ':') {
    const char *at = end + 1;
    const double last = strtod(at, &end);
    if (end == at || *end != ':') return analysis_taus_error(a, text);
    at = end + 1;
    const double step = strtod(at, &end);
    if (end == at || *end || !(step > 1e-6) || !(last - first < step * room)) return analysis_taus_error(a, text);
    for (; *count < room && first + *count * step <= last + 1e-9; (*count)++)
      taus[*count] = round((first + *count * step) * 1e9) / 1e9;
  } else {
    for (const char *at = text;; first = strtod(at, &end)) {
      if (end == at || *count == room) return analysis_taus_error(a, text);
      taus[(*count)++] = first;
      if (!*end) break;
      if (*end != ',') return analysis_taus_error(a, text);
      at = end + 1;
    }
  }
  for (int i = 0; i < *count; i++)
    if (!(taus[i] > 0 && taus[i] <= 1 && (i == 0 || taus[i] > taus[i - 1]))) return analysis_taus_error(a, text);
  return *count > 0 ? 0 : analysis_taus_error(a, text);
}

int analysis_control(struct analysis *a, const char *text, int32_t **ids, int *count) {
  if (!strcmp(text, "special")) /* with --data: the checkpoint's tokenizer, if it has one */
    if (analysis_tokenizer(a) != WN_OK) cli_note(&a->common, "no tokenizer: no control tokens");
  const int code = cli_control_tokens(a->command, text, a->tok, ids, count);
  if (code || !wn_model_config_get(a->model)->attention.threshold.enabled) return code;
  if (wn_model_set_control_tokens(a->ctx, a->model, *ids, *count) == WN_OK) return 0;
  return cli_error("--control %s: %s", text, wn_context_error(a->ctx));
}

int analysis_special(struct analysis *a) {
  int32_t *ids = NULL;
  int count = 0;
  if (!wn_model_config_get(a->model)->attention.threshold.enabled) return 0;
  const int code = analysis_control(a, "special", &ids, &count);
  free(ids);
  return code;
}

static void analysis_put_json(FILE *f, const void *what) {
  json_dumpf(what, f, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
  fputc('\n', f);
}

int analysis_deliver(const struct analysis *a, json_t *json, void (*put_csv)(FILE *, const void *),
                     void (*put_report)(const struct analysis *, const void *), const void *what) {
  const bool stream = a->csv && !strcmp(a->csv, "-");
  int code = json ? 0 : cli_error("out of memory");
  if (json && a->out) code = analysis_write_file(a, a->out, analysis_put_json, json);
  const int written = a->csv && !stream ? analysis_write_file(a, a->csv, put_csv, what) : 0;
  if (!code) code = written;
  if (json && a->common.json) {
    const int printed = cli_print_json(json);
    return code ? code : printed;
  }
  json_decref(json);
  if (stream)
    put_csv(stdout, what);
  else if (!a->common.json)
    put_report(a, what);
  return code;
}

/* ---- spans ---- */

static json_t *spans_json(const struct analysis *a, const wn_span_report *r) {
  const wn_span_operations *o = &r->operations;
  json_t *layers = json_array();
  for (int64_t l = 0; l < r->layers; l++) {
    const wn_span_layer *layer = &r->layer[l];
    json_t *heads = json_array();
    for (int64_t h = 0; h < r->heads; h++) {
      const wn_span_head *head = &r->head[l * r->heads + h];
      json_t *one = json_pack("{s:f, s:f}", "span", head->span, "keys", head->keys);
      if (r->dynamic)
        json_object_set_new(one, "quantiles",
                            json_pack("[f,f,f,f,f]", head->quantile[0], head->quantile[1], head->quantile[2],
                                      head->quantile[3], head->quantile[4]));
      json_array_append_new(heads, one);
    }
    json_t *one =
        json_pack("{s:f, s:f, s:o, s:I, s:I, s:o}", "span", layer->span, "widest", layer->widest, "reach",
                  layer->reach < 0 ? json_null() : json_integer(layer->reach), "memory_tokens",
                  (json_int_t)layer->recurrence_rows, "cache_tokens", (json_int_t)layer->cache_tokens, "heads", heads);
    json_array_append_new(layers, one);
  }
  json_t *operations =
      json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "maps", o->maps, "ffn", o->ffn, "attention", o->attention,
                "attention_together", o->attention_together, "attention_full", o->attention_full, "total", o->total,
                "total_together", o->total_together, "total_full", o->total_full);
  json_t *bytes =
      json_pack("{s:I, s:f, s:f, s:I, s:f, s:f}", "state_of_a_token", (json_int_t)r->state_bytes_token, "states",
                r->state_bytes, "states_full", r->state_bytes_full, "cache_of_a_token",
                (json_int_t)r->cache_bytes_token, "cache", r->cache_bytes, "cache_full", r->cache_bytes_full);
  return json_pack("{s:o, s:b, s:f, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:o, s:o}", "model", cli_text(a->model_dir),
                   "dynamic", r->dynamic, "limit", r->limit, "ramp", r->ramp, "tokens", (json_int_t)r->tokens, "memory",
                   (json_int_t)r->recurrence, "context", (json_int_t)r->context, "span", r->span, "keys", r->keys,
                   "widest", r->widest, "operations_per_token", operations, "bytes_per_sequence", bytes, "layers",
                   layers);
}

static void spans_csv(FILE *f, const void *what) {
  const wn_span_report *r = what;
  fprintf(f, "layer,head,span,keys%s\n", r->dynamic ? ",least,quarter,median,three_quarters,largest" : "");
  for (int64_t i = 0; i < r->layers * r->heads; i++) {
    const wn_span_head *head = &r->head[i];
    fprintf(f, "%" PRId64 ",%" PRId64 ",%.6g,%.6g", i / r->heads, i % r->heads, head->span, head->keys);
    for (int q = 0; r->dynamic && q < 5; q++) fprintf(f, ",%.6g", head->quantile[q]);
    fputc('\n', f);
  }
}

static double analysis_percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

static void spans_print(const struct analysis *a, const void *what) {
  const wn_span_report *r = what;
  const wn_span_operations *o = &r->operations;
  printf("%s: %s spans, limit %g, ramp %g, %" PRId64 " layers of %" PRId64 " heads", a->model_dir,
         r->dynamic ? "dynamic" : "learned", r->limit, r->ramp, r->layers, r->heads);
  if (r->dynamic) printf(", %" PRIu64 " tokens", r->tokens);
  printf("\n\nlayer   mean  widest  keeps  spans by head%s\n", r->dynamic ? " (mean: least, quartiles, largest)" : "");
  for (int64_t l = 0; l < r->layers; l++) {
    const wn_span_layer *layer = &r->layer[l];
    printf("%5" PRId64 "%7.0f%8.0f%7" PRId64 " ", l, layer->span, layer->widest, layer->cache_tokens);
    for (int64_t h = 0; h < r->heads; h++) {
      const wn_span_head *head = &r->head[l * r->heads + h];
      const double *q = head->quantile;
      if (r->dynamic)
        printf("%s%.0f: %.0f %.0f %.0f %.0f %.0f", h ? " | " : " ", head->span, q[0], q[1], q[2], q[3], q[4]);
      else
        printf("%6.0f", head->span);
    }
    putchar('\n');
  }
  printf("\naverage span      %.1f tokens, with the ramp %.1f keys per head; the widest %.1f\n", r->span, r->keys,
         r->widest);
  printf("operations/token  %s: projections %s, feed-forward %s, attention %s\n", cli_count(o->total),
         cli_count(o->maps), cli_count(o->ffn), cli_count(o->attention));
  printf("  fixed spans     %s, attention %s: %.0f%% of it with spans\n", cli_count(o->total_full),
         cli_count(o->attention_full), analysis_percent(o->attention, o->attention_full));
  printf("  heads together  %s, attention %s: all heads of a layer as far as its widest\n",
         cli_count(o->total_together), cli_count(o->attention_together));
  printf("memory, a sequence\n  cache           %s of %s: %.0f%%, %s for each token and layer\n",
         cli_bytes(r->cache_bytes), cli_bytes(r->cache_bytes_full),
         analysis_percent(r->cache_bytes, r->cache_bytes_full), cli_bytes((double)r->cache_bytes_token));
  if (r->recurrence > 0)
    printf("  earlier blocks  %s of %s: %.0f%%, %s for each token and layer\n", cli_bytes(r->state_bytes),
           cli_bytes(r->state_bytes_full), analysis_percent(r->state_bytes, r->state_bytes_full),
           cli_bytes((double)r->state_bytes_token));
}

/* ---- spans token by token ---- */

static void span_tokens_csv(FILE *f, const void *what) {
  const wn_span_tokens *r = what;
  fprintf(f, "token,id,begins_word,span");
  for (int64_t i = 0; i < r->layers * r->heads; i++)
    fprintf(f, ",layer_%" PRId64 "_head_%" PRId64, i / r->heads, i % r->heads);
  fputc('\n', f);
  for (int64_t t = 0; t < r->count; t++) {
    fprintf(f, "%" PRId64 ",%" PRId32 ",%d,%.7g", t, r->id[t], r->start[t], r->mean[t]);
    for (int64_t i = 0; i < r->layers * r->heads; i++)
      fprintf(f, ",%.7g", (double)r->span[t * r->layers * r->heads + i]);
    fputc('\n', f);
  }
}

static json_t *span_tokens_json(const struct analysis *a, const wn_span_tokens *r) {
  json_t *mean = json_array();
  for (int64_t t = 0; t < r->count; t++) json_array_append_new(mean, json_real(r->mean[t]));
  return json_pack("{s:o, s:I, s:I, s:I, s:{s:I, s:f}, s:{s:I, s:f}, s:{s:I, s:f}, s:o}", "model",
                   cli_text(a->model_dir), "tokens", (json_int_t)r->count, "layers", (json_int_t)r->layers, "heads",
                   (json_int_t)r->heads, "word_starts", "tokens", (json_int_t)r->starts, "span", r->start_mean,
                   "before_word_starts", "tokens", (json_int_t)r->before, "span", r->before_mean, "elsewhere", "tokens",
                   (json_int_t)r->others, "span", r->other_mean, "spans", mean);
}

static void span_tokens_print(const struct analysis *a, const void *what) {
  const wn_span_tokens *r = what;
  printf("%s: dynamic spans of %" PRId64 " tokens, mean over %" PRId64 " layers of %" PRId64 " heads\n\n", a->model_dir,
         r->count, r->layers, r->heads);
  printf("where                      tokens   mean span\n"
         "a word begins            %8" PRId64 "%12.2f\nbefore a word begins     %8" PRId64
         "%12.2f\nelsewhere                %8" PRId64 "%12.2f\n",
         r->starts, r->start_mean, r->before, r->before_mean, r->others, r->other_mean);
}

struct spans {
  struct analysis analysis;
  bool tokens;
};

static const struct cli_option spans_options[] = {
    CLI_OPTION(struct spans, tokens, "tokens", NULL,
               "dynamic spans token by token instead, --csv with a row for each, and means where words begin"),
    ANALYSIS_OPTIONS(struct spans, analysis)};

static const struct cli_spec spans_spec = {
    .command = "winnow analyze spans",
    .summary =
        "How far back each head looks (adaptive and dynamic spans), and the operations and memory that this saves.\n"
        "Dynamic spans are measured on a text: --text or --data.",
    .options = spans_options,
    .option_count = CLI_COUNT(spans_options),
    .positional = "[DIR]",
    .positional_max = 1,
    .epilog =
        "Operations for one token, multiply and add counted as one: query, key, value and output projections, the\n"
        "feed-forward, and in the attention 2 D for each visible key, as Sukhbaatar et al. 2019 count them."};

static int spans_by_token(struct analysis *a) {
  const wn_analysis_input from = analysis_input(a);
  wn_span_tokens *tokens = NULL;
  if (a->batch > 0)
    return cli_usage_error(a->command, "--tokens reads one sequence at a time: it goes without --batch");
  int code = analysis_needs_text(a);
  if (code) return code;
  analysis_begin(a, "spans", "batches");
  code = analysis_end(a, analysis_ended(a, wn_analyze_span_tokens(a->ctx, a->model, &from, &tokens)));
  if (!code) code = analysis_deliver(a, span_tokens_json(a, tokens), span_tokens_csv, span_tokens_print, tokens);
  wn_span_tokens_destroy(tokens);
  return code;
}

static int analyze_spans(int argc, char **argv) {
  struct spans s = {.analysis = ANALYSIS_DEFAULTS};
  struct analysis *a = &s.analysis;
  int code = analysis_open(a, &spans_spec, argc, argv, &s);
  wn_span_report *report = NULL;
  if (s.tokens) {
    /* Words are found in text: for a token file the checkpoint's tokenizer is needed. */
    if (!code && analysis_tokenizer(a) != WN_OK)
      cli_note(&a->common, "no tokenizer: beginnings of words are not known");
    if (!code) code = spans_by_token(a);
    analysis_close(a);
    return code;
  }
  if (!code) {
    const bool input = a->source || a->tok;
    const wn_analysis_input from = analysis_input(a);
    analysis_begin(a, "spans", "batches");
    const wn_status status = analysis_ended(a, wn_analyze_spans(a->ctx, a->model, input ? &from : NULL, &report));
    if (status == WN_ERR_UNSUPPORTED && wn_model_config_get(a->model)->attention.span.enabled)
      code = cli_error("%s: %s, give --text or --data", a->model_dir, wn_context_error(a->ctx));
    else
      code = analysis_end(a, status);
    if (!code && input && !report->dynamic) cli_note(&a->common, "the spans are parameters: the text was not read");
  }
  if (!code) code = analysis_deliver(a, spans_json(a, report), spans_csv, spans_print, report);
  wn_span_report_destroy(report);
  analysis_close(a);
  return code;
}

int cmd_analyze(int argc, char **argv) {
  const struct cli_command commands[] = {
      {"meaningful", "tokens needed for shares of the attention, by context length; fits", analyze_meaningful},
      {"sweep", "perplexity, accuracy and tasks under a threshold; the smallest that keeps enough", analyze_sweep},
      {"attention", "similarity bias, entropy, sinks, distances", analyze_attention},
      {"survival", "which tokens budgets keep, and for how long", analyze_survival},
      {"fits", "curves through the counts of winnow generate --counts", analyze_fits},
      {"selection", "mean F over many sequences, with numbers; how alike two runs select", analyze_selection},
      {"task", "synthetic tasks: which tokens are selected away, and which are still needed", analyze_task},
      {"spans", "adaptive and dynamic spans: by head, operations, memory", analyze_spans},
  };
  return cli_dispatch("winnow analyze", "What a model attends to.", commands, CLI_COUNT(commands), argc, argv);
}
