/* winnow report: runs, checkpoints, searches and comparisons as one page of HTML with everything in it, and the same
 * figures as SVG and CSV. */
#include "cmd.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <winnow/analyze.h>
#include <winnow/report.h>
#include "args.h"
#include "recipe.h"
#include "report.h"
#include "signals.h"
#include "ui.h"

enum { SHORT = 64 }; /* tokens of a text whose heads are drawn one by one */

static bool has(const char *dir, const char *name) {
  char path[4096];
  return cli_join(path, sizeof path, dir, name) && cli_exists(path);
}

static bool is_dir(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The last part of a path, without what ends it. */
static const char *name_of(const char *path, char *out, size_t bytes) {
  size_t end = strlen(path);
  while (end > 1 && path[end - 1] == '/') end--;
  size_t begin = end;
  while (begin > 0 && path[begin - 1] != '/') begin--;
  snprintf(out, bytes, "%.*s", (int)(end - begin), path + begin);
  if (!strcmp(out, ".") || !out[0]) snprintf(out, bytes, "%s", "model");
  return out;
}

/* ---- what is given ---- */

static int add_input(struct report *r, const char *path) {
  struct report_input *in = &r->inputs[r->input_count];
  in->path = path;
  char name[sizeof in->name];
  name_of(path, name, sizeof name);
  memcpy(in->name, name, sizeof name);
  /* Two of one name are told apart by their places. */
  for (int i = 0; i < r->input_count; i++)
    if (!strcmp(r->inputs[i].name, name)) {
      snprintf(in->name, sizeof in->name, "%.180s (%d)", name, r->input_count + 1);
      break;
    }
  if (is_dir(path)) {
    in->log = has(path, "log.jsonl");
    in->model = has(path, "config.json");
    in->search = has(path, "search.json");
    in->compare = !in->search && has(path, "compare.json");
    if (!in->log && !in->model && !in->search && !in->compare)
      return cli_error("%s: expected a run (log.jsonl), a checkpoint (config.json), a search (search.json) or a "
                       "comparison (compare.json)",
                       path);
    if ((in->search || in->compare) &&
        !cli_join(in->file, sizeof in->file, path, in->search ? "search.json" : "compare.json"))
      return cli_error("%s: the path is too long", path);
  } else if (!cli_exists(path)) {
    return cli_error("%s: %s", path, strerror(errno));
  } else {
    const size_t n = strlen(path);
    if (n > 5 && !strcmp(path + n - 5, ".json")) {
      snprintf(in->file, sizeof in->file, "%s", path);
      json_t *j = json_load_file(path, 0, NULL);
      in->search = json_object_get(j, "points") != NULL;
      in->compare = !in->search && json_object_get(j, "results") != NULL;
      json_decref(j);
      if (!in->search && !in->compare) return cli_error("%s: neither a search nor a comparison of winnow prune", path);
    } else {
      in->model = true; /* a model in one file */
    }
  }
  r->input_count++;
  return 0;
}

static void input_clear(struct report_input *in) {
  wn_tokenizer_destroy(in->tok);
  wn_model_destroy(in->loaded);
  wn_budgets_clear(&in->budgets);
}

/* ---- texts ---- */

/* The words of `winnow report` that make this page's figures again. */
static void note_command(struct report *r, int argc, char **argv) {
  size_t n = (size_t)snprintf(r->command, sizeof r->command, "winnow report");
  for (int i = 1; i < argc && n < sizeof r->command - 1; i++) {
    const bool plain = argv[i][0] && !strpbrk(argv[i], " '\"$\\*?;&|<>()\n\t");
    n += (size_t)snprintf(r->command + n, sizeof r->command - n, plain ? " %s" : " '%s'", argv[i]);
  }
}

/* What token i adds to the text, as a stream decodes it: spaces are where they are in the text. */
static int pieces_of(struct report *r, const struct report_input *in, const int32_t *ids, int64_t T, char ***out) {
  wn_text_stream *stream;
  wn_status status = wn_text_stream_create(r->ctx, in->tok, &stream);
  if (status != WN_OK) return cli_fail(r->ctx, status);
  char **pieces = calloc((size_t)T, sizeof *pieces);
  for (int64_t i = 0; status == WN_OK && pieces && i < T; i++) {
    const char *s = "";
    size_t n = 0;
    status = wn_text_stream_push(r->ctx, stream, ids[i], &s, &n);
    if (status == WN_OK && !(pieces[i] = strndup(s ? s : "", n))) status = WN_ERR_MEMORY;
  }
  wn_text_stream_destroy(stream);
  *out = pieces;
  return !pieces ? cli_error("out of memory") : status == WN_OK ? 0 : cli_fail(r->ctx, status);
}

/* The run's own validation tokens, where its recipe names a file that is there. */
static int tokens_of_run(struct report *r, const struct report_input *in, int64_t T, int32_t **ids, int64_t *count) {
  char path[4096];
  wn_recipe recipe;
  *count = 0;
  if (r->data)
    snprintf(path, sizeof path, "%s", r->data);
  else if (!is_dir(in->path) || !has(in->path, "recipe.json") ||
           !cli_join(path, sizeof path, in->path, "recipe.json") ||
           wn_recipe_load(r->ctx, path, NULL, 0, &recipe) != WN_OK || recipe.data.kind != WN_DATA_TOKENS)
    return 0;
  else
    snprintf(path, sizeof path, "%s", recipe.data.val);
  if (!path[0] || !cli_exists(path)) return r->data ? cli_error("%s: %s", path, strerror(errno)) : 0;
  wn_token_file *file;
  wn_status status = wn_token_file_open(r->ctx, path, &file);
  if (status != WN_OK) return cli_fail(r->ctx, status);
  const uint64_t all = wn_token_file_count(file);
  *count = all < (uint64_t)T ? (int64_t)all : T;
  *ids = calloc((size_t)*count + 1, sizeof **ids);
  status = *ids ? wn_token_file_read(r->ctx, file, 0, (uint64_t)*count, *ids) : WN_ERR_MEMORY;
  wn_token_file_close(file);
  return status == WN_OK ? 0 : cli_fail(r->ctx, status);
}

static int tokens_of_text(struct report *r, const struct report_input *in, int64_t T, int32_t **ids, int64_t *count) {
  size_t n = 0;
  int32_t *all = NULL;
  const wn_status status = wn_tokenizer_encode(r->ctx, in->tok, r->content, r->content_bytes,
                                               wn_tokenizer_bos(in->tok) >= 0, false, &all, &n);
  if (status != WN_OK) return cli_fail(r->ctx, status);
  *count = n < (size_t)T ? (int64_t)n : T;
  *ids = calloc((size_t)*count + 1, sizeof **ids);
  if (*ids) memcpy(*ids, all, (size_t)*count * sizeof **ids);
  wn_tokens_free(all);
  return *ids ? 0 : cli_error("out of memory");
}

static int budgets_of(struct report *r, struct report_input *in) {
  const wn_model_config *c = wn_model_config_get(in->loaded);
  struct cli_budgets given = r->budgets;
  if (!given.spec) return 0;
  /* Numbers say nothing about the policy; a file does. */
  if (!given.policy && !c->attention.selective.enabled && !cli_exists(given.spec)) given.policy = "h2o";
  const int code = cli_budgets_load(r->ctx, &given, in->loaded, &in->budgets);
  in->has_budgets = !code;
  return code;
}

static int add_text(struct report *r, struct report_input *in) {
  const wn_model_config *c = wn_model_config_get(in->loaded);
  int32_t *ids = NULL;
  char **pieces = NULL;
  int64_t T = 0, most = r->tokens < c->context ? r->tokens : c->context;
  int code = r->content ? tokens_of_text(r, in, most, &ids, &T) : tokens_of_run(r, in, most, &ids, &T);
  if (!code && T == 0 && r->content) code = cli_error("%s: no tokens in it", r->text);
  if (!code && T > 0) code = pieces_of(r, in, ids, T, &pieces);
  if (!code && T > 0) {
    const wn_budgets *budgets = in->has_budgets ? &in->budgets : NULL;
    const bool heads = T <= SHORT || r->heads;
    const wn_page_text text = {.name = in->name,
                               .pieces = (const char *const *)pieces,
                               .T = T,
                               .layers = c->layers,
                               .heads = c->heads,
                               .selective = c->attention.selective.enabled,
                               .budgets = budgets};
    double loss = 0;
    wn_status status = wn_page_begin_text(r->page, &text);
    if (status == WN_OK)
      status = wn_analyze_selection(r->ctx, in->loaded, ids, T, budgets, heads, wn_page_add_layer, r->page, &loss);
    if (status == WN_OK) status = wn_page_set_loss(r->page, loss);
    if (status != WN_OK) code = cli_fail(r->ctx, status);
    r->shown++;
  } else if (!code) {
    cli_note(&r->common, "%s: no text to show: give --text, or --data", in->path);
  }
  for (int64_t i = 0; pieces && i < T; i++) free(pieces[i]);
  free(pieces);
  free(ids);
  return code;
}

int report_source(struct report *r, const struct report_input *in, int64_t T, wn_data_source **out) {
  const wn_model_config *c = wn_model_config_get(in->loaded);
  wn_recipe recipe;
  char path[4096];
  *out = NULL;
  wn_recipe_init(&recipe);
  if (!r->data) {
    if (!is_dir(in->path) || !has(in->path, "recipe.json") || !cli_join(path, sizeof path, in->path, "recipe.json"))
      return 0;
    if (wn_recipe_load(r->ctx, path, NULL, 0, &recipe) != WN_OK || recipe.data.kind != WN_DATA_TOKENS) return 0;
    if (!recipe.data.val[0] || !cli_exists(recipe.data.val)) return 0;
  } else {
    recipe.data.kind = WN_DATA_TOKENS;
    if (snprintf(recipe.data.val, sizeof recipe.data.val, "%s", r->data) >= (int)sizeof recipe.data.val)
      return cli_error("%s: the path is too long", r->data);
  }
  recipe.data.stream = false;
  const wn_status status = wn_data_source_create(r->ctx, &recipe.data, "val", T, (int32_t)c->vocab_size, out);
  return status == WN_OK ? 0 : cli_fail(r->ctx, status);
}

static int add_mean(struct report *r, struct report_input *in) {
  const wn_model_config *c = wn_model_config_get(in->loaded);
  const int64_t T = r->tokens < c->context ? r->tokens : c->context;
  wn_data_source *source;
  wn_selection_mean *mean = NULL;
  const int code = report_source(r, in, T, &source);
  if (code || !source) return code;
  wn_status status = wn_analyze_selection_mean(r->ctx, in->loaded, source, T, r->sequences, 0, NULL, NULL, &mean);
  if (status == WN_OK) status = wn_page_add_mean(r->page, in->name, mean);
  wn_selection_mean_destroy(mean);
  wn_data_source_destroy(source);
  return status == WN_OK ? 0 : cli_fail(r->ctx, status);
}

static int add_texts(struct report *r) {
  int code = 0, models = 0;
  for (int i = 0; !code && i < r->input_count; i++) {
    struct report_input *in = &r->inputs[i];
    if (!in->loaded || !in->tok || wn_model_config_get(in->loaded)->encoder.layers > 0 || models == r->models) continue;
    models++;
    code = budgets_of(r, in);
    if (!code) code = add_text(r, in);
    if (!code && r->sequences > 0) code = add_mean(r, in);
  }
  if (code || (!r->shown && !r->sequences)) return code;
  wn_status status = wn_page_add_section(r->page, "What is looked at, what is dropped");
  if (status == WN_OK) status = wn_page_add_texts(r->page, r->command);
  return status == WN_OK ? 0 : cli_fail(r->ctx, status);
}

/* ---- the command ---- */

static int load_models(struct report *r) {
  for (int i = 0; i < r->input_count; i++) {
    struct report_input *in = &r->inputs[i];
    if (!in->model) continue;
    /* A run at work may have no checkpoint that fits: its curves are there all the same. */
    wn_status status = wn_model_load(r->ctx, in->path, &in->loaded);
    if (status != WN_OK) return cli_fail(r->ctx, status);
    status = wn_tokenizer_load(r->ctx, in->path, &in->tok);
    if (status != WN_OK) {
      cli_note(&r->common, "%s: no tokenizer (%s): its text is not shown", in->path, wn_context_error(r->ctx));
      in->tok = NULL;
    }
  }
  return 0;
}

static int build(struct report *r) {
  int code = report_training(r);
  if (!code) code = load_models(r);
  if (!code) code = add_texts(r);
  if (!code) code = report_budgets(r);
  if (!code) code = report_pruning(r);
  if (!code) code = report_models(r);
  if (!code) code = report_look(r);
  return code;
}

int cmd_report(int argc, char **argv) {
  struct report r = {.common = CLI_COMMON_DEFAULTS,
                     .out = "report.html",
                     .tokens = 512,
                     .sequences = 0,
                     .models = 2,
                     .limit = 5,
                     .budgets = CLI_BUDGETS_DEFAULTS};
  struct cli_list inputs = {0};
  bool no_figures = false;
  char folder[4096];
  const struct cli_option options[] = {
      {.name = "text",
       .type = CLI_STRING,
       .out = &r.text,
       .metavar = "FILE",
       .help = "the text to show token by token; - is standard input; else the run's own validation tokens"},
      {.name = "data",
       .type = CLI_STRING,
       .out = &r.data,
       .metavar = "FILE",
       .help = "a token file (.bin) instead of them, also for --sequences"},
      {.name = "out", .type = CLI_STRING, .out = &r.out, .metavar = "FILE", .help = "the page"},
      {.name = "figures",
       .type = CLI_STRING,
       .out = &r.figures,
       .metavar = "DIR",
       .help = "where the figures go as SVG and CSV; else beside the page"},
      {.name = "no-figures", .type = CLI_FLAG, .out = &no_figures, .help = "only the page"},
      {.name = "title", .type = CLI_STRING, .out = &r.title, .metavar = "TEXT", .help = "the page's heading"},
      {.name = "tokens",
       .type = CLI_INT,
       .out = &r.tokens,
       .metavar = "N",
       .help = "of the text at most",
       .min = 1,
       .max = 65536},
      {.name = "sequences",
       .type = CLI_UINT,
       .out = &r.sequences,
       .metavar = "N",
       .help = "mean matrices over so many sequences; 0: none"},
      {.name = "heads",
       .type = CLI_FLAG,
       .out = &r.heads,
       .help = "every head's matrix, also of texts longer than 64 tokens"},
      {.name = "models",
       .type = CLI_INT,
       .out = &r.models,
       .metavar = "N",
       .help = "so many models' texts beside each other",
       .min = 0,
       .max = 8},
      {.name = "limit",
       .type = CLI_DOUBLE,
       .out = &r.limit,
       .metavar = "MB",
       .help = "size of the page at most",
       .min = 0.1,
       .max = 1000},
      CLI_BUDGETS_OPTIONS(&r.budgets),
      {.name = "policies",
       .type = CLI_STRING,
       .out = &r.policies,
       .metavar = "NAMES",
       .help = "whose survival under --budgets is shown: all that they go with, none, or names with commas"},
      CLI_COMMON_OPTIONS(&r.common)};
  const struct cli_spec spec = {
      .command = "winnow report",
      .summary =
          "Writes one page of HTML with everything in it (no network is needed or used): training curves, what every\n"
          "token of a text sees, what is selected away and evicted, budgets, quality against memory, spans. The\n"
          "same figures go into a folder as SVG and CSV.",
      .options = options,
      .option_count = CLI_COUNT(options),
      .positional = "RUN_OR_CHECKPOINT...",
      .positional_min = 1,
      .positional_max = REPORT_INPUTS,
      .epilog =
          "Each is a run's folder, a checkpoint, a model file, a folder or search.json of winnow prune search, or a\n"
          "folder or compare.json of winnow prune compare."};
  int code = cli_parse(&spec, argc, argv, &inputs);
  if (code == CLI_GO) code = cli_budgets_check(spec.command, &r.budgets);
  if (code == CLI_GO) code = report_policies_check(spec.command, &r);
  if (code == CLI_GO) code = cli_context_open(&r.common, &r.ctx);
  for (int i = 0; !code && i < inputs.count; i++) code = add_input(&r, inputs.items[i]);
  if (!code && r.text) {
    code = cli_read_file(r.text, &r.content, &r.content_bytes);
    if (!code && r.content_bytes == 0) code = cli_error("%s: the file is empty", r.text);
  }
  if (!code && !no_figures && !r.figures) {
    const size_t n = strlen(r.out);
    const bool html = n > 5 && !strcmp(r.out + n - 5, ".html");
    snprintf(folder, sizeof folder, "%.*s-figures", (int)(html ? n - 5 : n), r.out);
    r.figures = folder;
  }
  char title[600];
  if (!code) {
    note_command(&r, argc, argv);
    snprintf(title, sizeof title, "%.400s%s", r.inputs[0].name, r.input_count > 1 ? " and others" : "");
    if (r.input_count == 2) snprintf(title, sizeof title, "%.250s and %.250s", r.inputs[0].name, r.inputs[1].name);
    const wn_page_options page = {.size = sizeof page,
                                  .title = r.title ? r.title : title,
                                  .lead = "What the models keep of their context, what they drop, and what that costs.",
                                  .figures = no_figures ? NULL : r.figures,
                                  .limit = (size_t)(r.limit * 1e6)};
    const wn_status status = wn_page_create(r.ctx, &page, &r.page);
    if (status != WN_OK) code = cli_fail(r.ctx, status);
  }
  const double start = cli_seconds();
  size_t bytes = 0;
  if (!code) {
    cli_signals_begin(r.ctx);
    code = build(&r);
    cli_signals_end();
  }
  if (!code) {
    const wn_status status = wn_page_save(r.page, r.out, &bytes);
    if (status != WN_OK) code = cli_fail(r.ctx, status);
  }
  if (!code && r.common.json)
    code = cli_print_json(json_pack("{s:s, s:I, s:i, s:f, s:o}", "out", r.out, "bytes", (json_int_t)bytes, "texts",
                                    r.shown, "seconds", cli_seconds() - start, "figures",
                                    no_figures ? json_null() : json_string(r.figures)));
  else if (!code)
    cli_note(&r.common, "%s: %s in %.1f s%s%s", r.out, cli_bytes((double)bytes), cli_seconds() - start,
             no_figures ? "" : "; figures as SVG and CSV in ", no_figures ? "" : r.figures);
  wn_page_destroy(r.page);
  for (int i = 0; i < r.input_count; i++) input_clear(&r.inputs[i]);
  free(r.content);
  wn_context_destroy(r.ctx);
  cli_list_clear(&inputs);
  return code;
}
