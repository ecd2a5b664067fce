/* What the subcommands of winnow analyze share (analyze.h). */
#include "analyze.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "attention.h"
#include "load.h"
#include "signals.h"
#include "files.h"

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
  char kept[CLI_PATH_BYTES];
  const char *path = cli_recipe_of(NULL, a->model_dir, kept);
  if (!wn_model_config_get(a->model)->encoder.selective)
    return cli_error("%s: the model has no selective encoder (model.encoder.selective)", a->model_dir);
  if (a->rows.long_only || a->rows.document >= 0)
    return cli_usage_error(a->command, "--encoder reads stretches of the token file: not with --long-only");
  const int code = path ? cli_recipe_load(a->ctx, path, &(struct cli_list){0}, recipe) : 0;
  if (code) return code;
  recipe->data.kind = WN_DATA_SPAN_CORRUPTION;
  recipe->data.input_length = a->eval.context ? a->eval.context : wn_model_config_get(a->model)->encoder.context;
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
    recipe.data.stream = a->eval.recurrence ? a->eval.recurrence > 0 : config->recurrence > 0;
  }
  if (strlen(a->data) >= sizeof recipe.data.val) return cli_error("%s: the path is too long", a->data);
  snprintf(recipe.data.val, sizeof recipe.data.val, "%s", a->data);
  const int code = cli_rows_apply(a->ctx, a->command, &a->rows, a->tokenizer, a->model_dir, &recipe.data);
  if (code) return code;
  const wn_status status = wn_data_source_create(a->ctx, &recipe.data, "val",
                                                 a->eval.context && !a->encoder ? a->eval.context : config->context,
                                                 (int32_t)config->vocab_size, &a->source);
  if (status != WN_OK) return cli_fail(a->ctx, status);
  cli_tokens_check(a->ctx, a->data, a->model_dir, a->model);
  return 0;
}

int analysis_open(struct analysis *a, const struct cli_spec *spec, int argc, char **argv, void *into) {
  a->command = spec->command;
  int code = cli_parse_model(spec, argc, argv, into, true, &a->model_dir);
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
  a->eval.progress = cli_progress_on;
  a->eval.user = &a->bar;
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
  if (status == WN_ERR_CANCELLED) return cli_fail(a->ctx, status);
  return cli_error("%s: %s", a->model_dir, wn_context_error(a->ctx));
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
