/* winnow prune: budgets found by search; policies compared. */
#include "cmd.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/prune.h>
#include <winnow/report.h>
#include "args.h"
#include "budgets.h"
#include "recipe.h"
#include "signals.h"
#include "ui.h"

enum { PATH_BYTES = 4096, BUDGETS_MAX = 64 };
/* Which rows of a token file, and how many at a time. */
struct rows {
  int64_t document, batch;
  bool long_only;
};
/* clang-format off */
#define ROWS_OPTIONS(r)                                                                                               \
  {.name = "long-only", .type = CLI_FLAG, .out = &(r)->long_only,                                                     \
   .help = "rows are documents that fill at least 90% of the context, each from its start"},                          \
  {.name = "document-token", .type = CLI_INT, .out = &(r)->document, .metavar = "ID", .min = -1, .max = INT32_MAX,    \
   .help = "--long-only: starts a document; -1: the tokenizer's first token"},                                        \
  {.name = "batch", .type = CLI_INT, .out = &(r)->batch, .metavar = "N", .min = 0, .max = 1 << 20,                    \
   .help = "rows at a time; 0: 8"}
/* clang-format on */

/* The token that starts a document: given, or the tokenizer's beside the checkpoint. */
static int document_token(wn_context *ctx, const char *model, int64_t given, int32_t *out) {
  *out = (int32_t)given;
  if (given >= 0) return 0;
  wn_tokenizer *tok = NULL;
  wn_status status = wn_tokenizer_load(ctx, model, &tok);
  if (status == WN_OK) *out = wn_tokenizer_bos(tok);
  wn_tokenizer_destroy(tok);
  if (status != WN_OK) return cli_fail(ctx, status);
  if (*out < 0)
    return cli_usage_error("winnow prune", "--long-only: the tokenizer of %s marks no documents: give --document-token",
                           model);
  return 0;
}

/* ---- search ---- */

struct search {
  struct cli_common common;
  struct cli_policy_choices choices;
  struct rows rows;
  const char *model, *data, *report, *policy, *target_checkpoint, *tolerance, *out, *memory, *config;
  struct cli_list sets;
  int64_t search_rows, report_rows;
  bool resume, save;
  wn_prune_options options;
};

struct watch {
  const struct cli_common *common;
  struct cli_progress bar;
  wn_context *ctx;
  bool began, told;
};

static void on_progress(void *user, const wn_prune_progress *p) {
  struct watch *w = user;
  const wn_prune_curve *c = p->curve;
  const wn_prune_point *last = &c->points[c->count - 1];
  char extra[256];
  /* How far the search is cannot be known: budgets end where the target says. Shown is the way to the floor. */
  const uint64_t whole = (uint64_t)(c->layers * (c->context / c->step - 1));
  if (!w->began) {
    cli_note(w->common, "search: %" PRId64 " rows of %" PRId64 " tokens; report: %" PRId64 "; %s held", c->search_rows,
             c->context, c->report_rows, cli_bytes((double)p->bytes));
    cli_note(w->common, "perplexity %.4f (search), %.4f (report); not to be passed: %.4f",
             exp(c->points[0].search_loss), exp(c->points[0].report_loss), exp(c->target_loss));
    w->bar.first = (uint64_t)c->count - 1;
  }
  w->began = true;
  if (p->tuning) {
    snprintf(extra, sizeof extra, "fine-tuning: step %" PRId64 ", loss %.4f", p->tuning->step, p->tuning->loss);
    cli_progress_update(&w->bar, (uint64_t)c->count - 1, whole, extra);
    return;
  }
  snprintf(extra, sizeof extra, "perplexity %.4f (search) %.4f (report)  %.2fx less memory", exp(last->search_loss),
           exp(last->report_loss), last->saving);
  if (p->stepped) cli_progress_update(&w->bar, (uint64_t)c->count - 1, whole, extra);
  if (wn_context_cancelled(w->ctx) && !w->told) {
    w->told = true;
    cli_progress_clear(&w->bar);
    cli_note(w->common, "winnow: interrupted; the steps so far are saved");
  }
}

static int64_t count_differing(const wn_prune_curve *c, double *most) {
  int64_t n = 0;
  *most = 0;
  for (int64_t i = 1; c->checked && i < c->count; i++) {
    const wn_prune_point *p = &c->points[i];
    if (p->exact_layer == p->layer) continue;
    n++;
    if (p->untuned_search_loss - p->exact_loss > *most) *most = p->untuned_search_loss - p->exact_loss;
  }
  return n;
}

static json_t *search_json(const struct search *s, const wn_prune_curve *c) {
  const wn_prune_point *last = &c->points[c->count - 1], *first = &c->points[0];
  json_t *tokens = json_array();
  int64_t evaluations = 0;
  for (int64_t l = 0; tokens && l < c->layers; l++) json_array_append_new(tokens, json_integer(last->tokens[l]));
  for (int64_t i = 0; i < c->count; i++) evaluations += c->points[i].evaluations;
  json_t *j = json_pack(
      "{s:s, s:s, s:I, s:o, s:I, s:f, s:o, s:o, s:o, s:o, s:s, s:I, s:f, s:I}", "model", s->model, "out", s->out,
      "steps", (json_int_t)c->count - 1, "tokens", tokens, "total", (json_int_t)last->total, "saving", last->saving,
      "search_perplexity", cli_number(exp(last->search_loss)), "report_perplexity", cli_number(exp(last->report_loss)),
      "unpruned_search_perplexity", cli_number(exp(first->search_loss)), "unpruned_report_perplexity",
      cli_number(exp(first->report_loss)), "end", wn_prune_end_name(c->end), "evaluations", (json_int_t)evaluations,
      "seconds", last->seconds, "peak_resident_bytes", (json_int_t)cli_peak_resident());
  if (!j) return NULL;
  json_object_set_new(j, "search_tokens", json_integer((json_int_t)c->search_tokens));
  json_object_set_new(j, "report_tokens", json_integer((json_int_t)c->report_tokens));
  if (isfinite(c->target_loss)) json_object_set_new(j, "target_perplexity", cli_number(exp(c->target_loss)));
  if (!isnan(c->plain_loss)) json_object_set_new(j, "verified", json_boolean(c->plain_loss == last->search_loss));
  if (last->tuned > 0) {
    char path[PATH_BYTES];
    json_object_set_new(j, "tuned_steps", json_integer(last->tuned));
    if (cli_join(path, sizeof path, s->out, "tuned")) json_object_set_new(j, "tuned", json_string(path));
  }
  if (c->checked) {
    double most;
    json_object_set_new(j, "differing_steps", json_integer(count_differing(c, &most)));
    json_object_set_new(j, "differing_by_at_most", json_real(most));
  }
  return j;
}

static int search_report(const struct search *s, const wn_prune_curve *c) {
  const wn_prune_point *last = &c->points[c->count - 1], *first = &c->points[0];
  if (s->common.json) return cli_print_json(search_json(s, c));
  static const char *const ends[] = {
      [WN_PRUNE_OPEN] = "stopped; go on with --resume",
      [WN_PRUNE_TARGET] = "the next step would pass the target",
      [WN_PRUNE_FLOOR] = "no budget can be lowered further",
      [WN_PRUNE_STEPS] = "as many steps as were asked for; --resume goes on",
  };
  printf("budgets        ");
  for (int64_t l = 0; l < c->layers; l++) printf("%s%" PRId64, l ? "," : "", last->tokens[l]);
  printf("\nmemory         %.2fx less (%" PRId64 " of %" PRId64 " tokens)\n", last->saving, last->total, first->total);
  printf("perplexity     %.4f on the search set (unpruned %.4f), %.4f on the report set (unpruned %.4f)\n",
         exp(last->search_loss), exp(first->search_loss), exp(last->report_loss), exp(first->report_loss));
  printf("steps          %" PRId64 " in %s: %s\n", c->count - 1, cli_duration(last->seconds), ends[c->end]);
  if (last->tuned > 0) printf("fine-tuning    %" PRId64 " steps; the checkpoint is %s/tuned\n", last->tuned, s->out);
  if (c->checked) {
    double most;
    const int64_t n = count_differing(c, &most);
    printf("lazy           %" PRId64 " of %" PRId64 " steps lowered another layer than the exact search would have%s",
           n, c->count - 1, n ? "" : "\n");
    if (n) printf(", at a loss of at most %.3g more\n", most);
  }
  printf("files          %s/search.json, curve.csv, curve.svg, budgets.json\n", s->out);
  return 0;
}

static wn_status save_curve(wn_context *ctx, const struct search *s, const wn_prune_curve *c) {
  char path[PATH_BYTES], title[512];
  wn_status status = WN_OK;
  if (c->count < 1) return WN_OK;
  snprintf(title, sizeof title, "%s: budgets found by search, policy %s", s->model, s->policy);
  if (cli_join(path, sizeof path, s->out, "curve.csv")) status = wn_prune_curve_save_csv(ctx, c, path);
  if (status == WN_OK && cli_join(path, sizeof path, s->out, "curve.svg"))
    status = wn_prune_curve_save_svg(ctx, c, title, path);
  if (status != WN_OK || !s->save || c->end == WN_PRUNE_OPEN) return status;
  wn_budgets budgets = {0};
  status = wn_prune_curve_budgets(ctx, c, c->count - 1, &budgets);
  if (status == WN_OK && cli_join(path, sizeof path, s->model, "budgets.json"))
    status = wn_budgets_save(ctx, &budgets, path);
  wn_budgets_clear(&budgets);
  return status;
}

/* "0.5%" or "0.005". */
static int read_tolerance(const char *text, double *out) {
  char *end;
  errno = 0;
  *out = strtod(text, &end);
  if (end == text || errno || !isfinite(*out) || *out < 0 || (*end && strcmp(end, "%")))
    return cli_usage_error("winnow prune search",
                           "--tolerance: \"%s\" is neither a part (0.005) nor a percentage (0.5%%)", text);
  if (*end) *out /= 100;
  return 0;
}

/* "2GB", "512MiB". */
static int read_memory(const char *text, uint64_t *out) {
  double bytes;
  if (!wn_bytes_parse(text, &bytes))
    return cli_usage_error("winnow prune search", "--memory: \"%s\" is no number of bytes, such as 2GB", text);
  *out = bytes < 0x1p63 ? (uint64_t)bytes : UINT64_C(1) << 63;
  return 0;
}

static int check_search(struct search *s, int code) {
  const int targets = (s->options.target > 0) + (s->target_checkpoint != NULL) + (s->tolerance != NULL);
  if (code != CLI_GO) return code;
  if (targets != 1)
    return cli_usage_error("winnow prune search", "give one of --target, --target-checkpoint and --tolerance: what the "
                                                  "perplexity may not pass");
  const wn_prune_finetune *tuning = &s->options.finetune;
  const bool any = tuning->steps > 0 || tuning->after > 0;
  if (tuning->every > 0 && tuning->steps == 0)
    return cli_usage_error("winnow prune search", "--finetune-every goes with --finetune-steps");
  if (!any && (s->config || s->sets.count || tuning->lr > 0))
    return cli_usage_error("winnow prune search", "--config, --set and --finetune-lr are for fine-tuning: give "
                                                  "--finetune-steps or --finetune-after");
  if (any && s->save)
    return cli_usage_error("winnow prune search",
                           "--save: with fine-tuning the budgets lie beside the tuned checkpoint");
  if (s->options.check && !s->options.lazy)
    return cli_usage_error("winnow prune search", "--check goes with --lazy: the exact search has nothing to compare");
  if (s->tolerance && read_tolerance(s->tolerance, &s->options.tolerance)) return 2;
  if (s->memory && read_memory(s->memory, &s->options.memory)) return 2;
  cli_policy_named(s->policy, strlen(s->policy), &s->options.budgets.policy);
  cli_policy_choices_apply(&s->choices, &s->options.budgets);
  s->options.batch = s->rows.batch;
  return CLI_GO;
}

/* What is trained on: --config, or the checkpoint's own recipe; then --set. */
static int read_recipe(wn_context *ctx, struct search *s, wn_recipe *recipe) {
  char kept[PATH_BYTES];
  const char *path = s->config;
  if (!s->options.finetune.steps && !s->options.finetune.after) return 0;
  if (!path && (!cli_join(kept, sizeof kept, s->model, "recipe.json") || !cli_exists(kept)))
    return cli_error("%s has no recipe.json to fine-tune by: give --config", s->model);
  s->options.finetune.checkpoint = s->model;
  s->options.finetune.recipe = recipe;
  return cli_recipe_load(ctx, path ? path : kept, &s->sets, recipe);
}

static int run_search(wn_context *ctx, struct search *s) {
  wn_model *model = NULL, *target = NULL;
  wn_recipe recipe;
  int32_t token = -1;
  int code = s->rows.long_only ? document_token(ctx, s->model, s->rows.document, &token) : 0;
  if (!code) code = read_recipe(ctx, s, &recipe);
  if (code) return code;
  s->options.search = (wn_prune_data){s->data, s->search_rows, s->rows.long_only, token};
  s->options.report = (wn_prune_data){s->report, s->report_rows, s->rows.long_only, token};
  wn_status status =
      s->options.finetune.recipe ? wn_model_load_float(ctx, s->model, &model) : wn_model_load(ctx, s->model, &model);
  if (status == WN_OK && s->target_checkpoint) status = wn_model_load(ctx, s->target_checkpoint, &target);
  s->options.target_model = target;
  if (status == WN_OK) cli_tokens_check(ctx, s->options.search.path, s->model, model);
  wn_prune_curve curve = {0};
  if (status == WN_OK) {
    struct watch w = {.common = &s->common, .ctx = ctx};
    cli_progress_begin(&w.bar, &s->common, "search", "steps");
    cli_signals_begin(ctx);
    status = wn_prune_search(ctx, model, &s->options, s->out, s->resume, on_progress, &w, &curve);
    cli_signals_end();
    cli_progress_end(&w.bar);
  }
  if (status == WN_OK || status == WN_ERR_CANCELLED) {
    const wn_status saved = save_curve(ctx, s, &curve);
    if (saved != WN_OK)
      code = cli_fail(ctx, saved);
    else if (status == WN_ERR_CANCELLED)
      cli_note(&s->common, "winnow: stopped; go on with the same command and --resume");
    if (!code && curve.count > 0) code = search_report(s, &curve);
    if (!code && status == WN_ERR_CANCELLED) code = CLI_INTERRUPTED;
  } else {
    code = cli_fail(ctx, status);
  }
  wn_prune_curve_clear(&curve);
  wn_model_destroy(target);
  wn_model_destroy(model);
  return code;
}

static int search(int argc, char **argv) {
  struct search s = {.common = CLI_COMMON_DEFAULTS,
                     .choices = CLI_POLICY_CHOICES_DEFAULTS,
                     .policy = "selective",
                     .rows.document = -1};
  wn_prune_options_init(&s.options, sizeof s.options);
  const struct cli_option options[] = {
      CLI_MODEL_OPTION(&s.model),
      {.name = "search",
       .type = CLI_STRING,
       .out = &s.data,
       .metavar = "FILE",
       .required = true,
       .help = "the token file that budgets are searched on"},
      {.name = "report",
       .type = CLI_STRING,
       .out = &s.report,
       .metavar = "FILE",
       .required = true,
       .help = "a token file that the search does not look at, measured after every step"},
      {.name = "search-rows",
       .type = CLI_INT,
       .out = &s.search_rows,
       .metavar = "N",
       .min = 0,
       .max = 1e12,
       .help = "at most so many rows of it, spread evenly; 0: all"},
      {.name = "report-rows",
       .type = CLI_INT,
       .out = &s.report_rows,
       .metavar = "N",
       .min = 0,
       .max = 1e12,
       .help = "likewise"},
      {.name = "context",
       .type = CLI_INT,
       .out = &s.options.context,
       .metavar = "N",
       .min = 0,
       .max = 1 << 24,
       .help = "tokens a row; 0: the model's"},
      {.name = "policy",
       .type = CLI_STRING,
       .out = &s.policy,
       .metavar = "NAME",
       .choices = cli_policies,
       .help = "which token goes"},
      ROWS_OPTIONS(&s.rows),
      CLI_POLICY_CHOICES_OPTIONS(&s.choices),
      {.name = "step",
       .type = CLI_INT,
       .out = &s.options.step,
       .metavar = "C",
       .min = 1,
       .max = 1 << 24,
       .help = "tokens that a step takes from a layer, and the least that a layer keeps"},
      {.name = "target",
       .type = CLI_DOUBLE,
       .out = &s.options.target,
       .metavar = "PPL",
       .min = 1e-9,
       .max = 1e300,
       .help = "stop where this perplexity would be passed"},
      {.name = "target-checkpoint",
       .type = CLI_STRING,
       .out = &s.target_checkpoint,
       .metavar = "DIR",
       .help = "stop at that of this checkpoint, unpruned, on the search set"},
      {.name = "tolerance",
       .type = CLI_STRING,
       .out = &s.tolerance,
       .metavar = "PART",
       .help = "stop at the model's own, unpruned, and so much more: 0.5%"},
      {.name = "max-steps",
       .type = CLI_INT,
       .out = &s.options.max_steps,
       .metavar = "N",
       .min = 0,
       .max = 1e9,
       .help = "stop after so many, to be resumed; 0: no limit"},
      {.name = "memory",
       .type = CLI_STRING,
       .out = &s.memory,
       .metavar = "BYTES",
       .help = "what may be held, such as 2GB; else half of the machine's"},
      {.name = "finetune-steps",
       .type = CLI_INT,
       .out = &s.options.finetune.steps,
       .metavar = "N",
       .min = 0,
       .max = 1e12,
       .help = "steps of training with the budgets in force, after each step of the search; 0: none"},
      {.name = "finetune-every",
       .type = CLI_INT,
       .out = &s.options.finetune.every,
       .metavar = "M",
       .min = 0,
       .max = 1e9,
       .help = "not after each but after every M, and before the target ends the search; 0: 1"},
      {.name = "finetune-after",
       .type = CLI_INT,
       .out = &s.options.finetune.after,
       .metavar = "N",
       .min = 0,
       .max = 1e12,
       .help = "steps of such training once the search has ended; 0: none"},
      {.name = "finetune-lr",
       .type = CLI_DOUBLE,
       .out = &s.options.finetune.lr,
       .metavar = "X",
       .min = 0,
       .max = 1000,
       .help = "their learning rate, from which each round decays; 0: where the recipe's schedule ends"},
      {.name = "config",
       .type = CLI_STRING,
       .out = &s.config,
       .metavar = "FILE",
       .help = "fine-tuning: a recipe; else the checkpoint's own"},
      {.name = "set",
       .type = CLI_LIST,
       .out = &s.sets,
       .metavar = "KEY=VALUE",
       .help = "fine-tuning: changes one key of the recipe, such as data.train=FILE"},
      {.name = "plain", .type = CLI_FLAG, .out = &s.options.plain, .help = "without reuse: the same result, slower"},
      {.name = "lazy",
       .type = CLI_FLAG,
       .out = &s.options.lazy,
       .help = "keep costs from earlier steps and renew only the cheapest: faster, may differ"},
      {.name = "check", .type = CLI_FLAG, .out = &s.options.check, .help = "--lazy: find out where it differs"},
      {.name = "out",
       .type = CLI_STRING,
       .out = &s.out,
       .metavar = "DIR",
       .required = true,
       .help = "receives search.json, curve.csv, curve.svg, budgets.json; and the checkpoint \"tuned\""},
      {.name = "resume", .type = CLI_FLAG, .out = &s.resume, .help = "go on with the search in --out"},
      {.name = "save", .type = CLI_FLAG, .out = &s.save, .help = "also put budgets.json beside the checkpoint"},
      CLI_COMMON_OPTIONS(&s.common)};
  const struct cli_spec spec = {
      .command = "winnow prune search",
      .summary =
          "How many tokens each layer needs: from the whole context on, each step takes C tokens from the layer whose\n"
          "loss of them costs least in perplexity, until the target would be passed (arXiv 2410.02703, section 4).",
      .options = options,
      .option_count = CLI_COUNT(options),
      .positional = "[DIR]",
      .positional_max = 1,
      .epilog = "Equal costs: the lowest layer. Interrupted, or killed, it goes on with --resume where the last step "
                "was saved."};
  struct cli_list dirs = {0};
  int code = cli_parse(&spec, argc, argv, &dirs);
  code = cli_model_argument(&spec, code, true, &dirs, &s.model);
  code = check_search(&s, code);
  wn_context *ctx = NULL;
  if (code == CLI_GO) code = cli_context_open(&s.common, &ctx);
  if (!code) code = run_search(ctx, &s);
  wn_context_destroy(ctx);
  cli_list_clear(&s.sets);
  return code;
}

/* ---- compare ---- */

enum { SUBJECTS = 3 };
static const char *const subject_names[SUBJECTS] = {"standard", "selective", "selective + L_mem"};

struct compare {
  struct cli_common common;
  struct cli_policy_choices choices;
  struct rows rows;
  const char *dirs[SUBJECTS], *searches[SUBJECTS], *data, *budgets, *policies, *labels, *out;
  char names[SUBJECTS][64];
  int64_t at_most, context;
  int64_t tokens[BUDGETS_MAX];
  int token_count;
  wn_policy chosen[WN_POLICY_MAX];
  int policy_count;
};

static void on_compared(void *user, uint64_t done, uint64_t total) {
  cli_progress_update(user, done, total, NULL);
}

static int read_budgets(struct compare *c) {
  for (const char *at = c->budgets;; at++) {
    char *end;
    errno = 0;
    const long long n = strtoll(at, &end, 10);
    if (end == at || errno || n < 1 || (*end && *end != ','))
      return cli_usage_error("winnow prune compare", "--budgets: \"%s\" is no list of tokens, such as 16,32,64",
                             c->budgets);
    if (c->token_count == BUDGETS_MAX)
      return cli_usage_error("winnow prune compare", "--budgets: at most %d of them", BUDGETS_MAX);
    c->tokens[c->token_count++] = n;
    at = end;
    if (!*at) return 0;
  }
}

static int read_policies(struct compare *c) {
  if (!c->policies) return 0;
  const char *bad;
  int n;
  switch (cli_policy_list(c->policies, c->chosen, &c->policy_count, &bad, &n)) {
  case CLI_POLICIES_UNKNOWN:
    return cli_usage_error("winnow prune compare", "--policies: \"%.*s\" is not one of %s", n, bad, cli_policies);
  case CLI_POLICIES_TWICE:
    return cli_usage_error("winnow prune compare", "--policies: \"%.*s\" is given twice", n, bad);
  default:
    return 0;
  }
}

/* The checkpoints' names, from --labels where given: one for each checkpoint. */
static int read_labels(struct compare *c) {
  const char *at = c->labels;
  for (int i = 0; i < SUBJECTS; i++) {
    if (!c->dirs[i]) continue;
    const char *name = at ? at : subject_names[i];
    const size_t n = strcspn(name, ",");
    if (n == 0 || n >= sizeof c->names[i])
      return cli_usage_error("winnow prune compare",
                             "--labels: \"%s\" must have a short name for each checkpoint given", c->labels);
    memcpy(c->names[i], name, n);
    if (at) at += n + (at[n] == ',');
  }
  return at && *at ? cli_usage_error("winnow prune compare",
                                     "--labels: \"%s\" has more names than there are checkpoints", c->labels)
                   : 0;
}

static const wn_prune_row *find_row(const wn_prune_comparison *r, int subject, int policy, bool searched,
                                    int64_t tokens) {
  for (int64_t i = 0; i < r->count; i++) {
    const wn_prune_row *row = &r->results[i];
    const double want = tokens < r->context ? (double)tokens : (double)r->context;
    if (row->subject != subject || row->policy != policy || row->searched != searched) continue;
    if (policy < 0 || fabs(row->per_layer - want) <= (searched ? 8 : 0)) return row;
  }
  return NULL;
}

static void print_line(const struct compare *c, const wn_prune_comparison *r, int subject, int policy, bool searched) {
  char name[64];
  bool any = false;
  for (int i = 0; i < c->token_count; i++) any = any || find_row(r, subject, policy, searched, c->tokens[i]);
  if (!any) return;
  snprintf(name, sizeof name, "%s%s", wn_policy_name((wn_policy)policy), searched ? ", searched" : "");
  printf("%-18s %-21s", r->names[subject], name);
  for (int i = 0; i < c->token_count; i++) {
    const wn_prune_row *row = find_row(r, subject, policy, searched, c->tokens[i]);
    if (row)
      printf(" %9.3f", exp(row->loss));
    else
      printf(" %9s", "-");
  }
  putchar('\n');
}

static void print_table(const struct compare *c, const wn_prune_comparison *r) {
  printf("perplexity on %" PRIu64 " tokens of %s, context %" PRId64 "; columns: tokens kept a layer\n", r->counted,
         c->data, r->context);
  printf("%-18s %-21s", "model", "policy");
  for (int i = 0; i < c->token_count; i++) printf(" %9" PRId64, c->tokens[i]);
  printf(" %9s\n", "unpruned");
  for (int s = 0; s < r->subjects; s++) {
    const wn_prune_row *whole = find_row(r, s, -1, false, 0);
    printf("%-18s %-21s%*s %9.3f\n", r->names[s], "none", 10 * c->token_count, "", whole ? exp(whole->loss) : NAN);
    for (int p = 0; p < wn_policy_count(); p++) {
      print_line(c, r, s, p, false);
      print_line(c, r, s, p, true);
    }
    const wn_prune_row *end = NULL; /* the fewest tokens that a search came to */
    for (int64_t i = 0; i < r->count; i++)
      if (r->results[i].subject == s && r->results[i].searched && (!end || r->results[i].total < end->total))
        end = &r->results[i];
    if (end)
      printf("%-18s searched to its end: %.5g tokens a layer, %.2fx less memory, perplexity %.3f\n", r->names[s],
             end->per_layer, end->saving, exp(end->loss));
  }
}

static int save_comparison(wn_context *ctx, const struct compare *c, const wn_prune_comparison *r) {
  char path[PATH_BYTES], title[256];
  wn_status status = WN_OK;
  snprintf(title, sizeof title, "Perplexity by tokens kept a layer, context %" PRId64, r->context);
  if (cli_join(path, sizeof path, c->out, "compare.json")) status = wn_prune_comparison_save_json(ctx, r, path);
  if (status == WN_OK && cli_join(path, sizeof path, c->out, "compare.csv"))
    status = wn_prune_comparison_save_csv(ctx, r, path);
  if (status == WN_OK && cli_join(path, sizeof path, c->out, "compare.svg"))
    status = wn_prune_comparison_save_svg(ctx, r, title, path);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}

static int print_comparison(const struct compare *c, const wn_prune_comparison *r) {
  char path[PATH_BYTES];
  if (c->common.json && cli_join(path, sizeof path, c->out, "compare.json"))
    return cli_print_json(json_load_file(path, 0, NULL));
  print_table(c, r);
  return 0;
}

static int run_compare(wn_context *ctx, struct compare *c) {
  wn_prune_compare_options o;
  wn_prune_subject subjects[SUBJECTS] = {0};
  wn_prune_curve curves[SUBJECTS] = {0};
  wn_model *models[SUBJECTS] = {0};
  wn_status status = WN_OK;
  int n = 0, code = 0;
  wn_prune_compare_options_init(&o, sizeof o);
  cli_policy_choices_apply(&c->choices, &o.budgets);
  o.data = (wn_prune_data){.path = c->data, .rows = c->at_most, .long_only = c->rows.long_only};
  for (int i = 0; i < SUBJECTS && status == WN_OK && !code; i++) {
    if (!c->dirs[i]) continue;
    if (c->rows.long_only && n == 0) code = document_token(ctx, c->dirs[i], c->rows.document, &o.data.document_token);
    if (code) break;
    status = wn_model_load(ctx, c->dirs[i], &models[i]);
    char path[PATH_BYTES];
    if (status == WN_OK && c->searches[i] && cli_join(path, sizeof path, c->searches[i], "search.json"))
      status = wn_prune_curve_load(ctx, path, &curves[i]);
    if (status == WN_OK) cli_tokens_check(ctx, c->data, c->dirs[i], models[i]);
    subjects[n++] = (wn_prune_subject){c->names[i], models[i], c->searches[i] ? &curves[i] : NULL};
  }
  for (int p = 0; p < wn_policy_count() && !c->policies; p++) {
    bool suits = false;
    for (int i = 0; i < n && status == WN_OK; i++)
      suits = suits || wn_policy_suits(p, &wn_model_config_get(subjects[i].model)->attention);
    if (suits) c->chosen[c->policy_count++] = p;
  }
  o.subjects = subjects;
  o.subject_count = n;
  o.context = c->context;
  o.batch = c->rows.batch;
  o.tokens = c->tokens;
  o.token_count = c->token_count;
  o.policies = c->chosen;
  o.policy_count = c->policy_count;
  wn_prune_comparison result = {0};
  if (!code && status == WN_OK) {
    struct cli_progress bar;
    cli_progress_begin(&bar, &c->common, "compare", "evaluations");
    cli_signals_begin(ctx);
    status = wn_prune_compare(ctx, &o, on_compared, &bar, &result);
    cli_signals_end();
    cli_progress_end(&bar);
  }
  if (status == WN_ERR_CANCELLED) {
    cli_error("interrupted");
    code = CLI_INTERRUPTED;
  } else if (status != WN_OK) {
    code = cli_fail(ctx, status);
  }
  if (!code) code = save_comparison(ctx, c, &result);
  if (!code) code = print_comparison(c, &result);
  wn_prune_comparison_clear(&result);
  for (int i = 0; i < SUBJECTS; i++) {
    wn_prune_curve_clear(&curves[i]);
    wn_model_destroy(models[i]);
  }
  return code;
}

static int compare(int argc, char **argv) {
  struct compare c = {.common = CLI_COMMON_DEFAULTS,
                      .choices = CLI_POLICY_CHOICES_DEFAULTS,
                      .budgets = "16,32,64,128,256",
                      .rows.document = -1};
  const struct cli_option options[] = {
      {.name = "standard",
       .type = CLI_STRING,
       .out = &c.dirs[0],
       .metavar = "DIR",
       .help = "a checkpoint with standard attention"},
      {.name = "selective",
       .type = CLI_STRING,
       .out = &c.dirs[1],
       .metavar = "DIR",
       .help = "one with selective attention"},
      {.name = "mem",
       .type = CLI_STRING,
       .out = &c.dirs[2],
       .metavar = "DIR",
       .help = "one that was also trained with L_mem"},
      {.name = "standard-search",
       .type = CLI_STRING,
       .out = &c.searches[0],
       .metavar = "DIR",
       .help = "what `winnow prune search` found for it: its budgets too"},
      {.name = "selective-search", .type = CLI_STRING, .out = &c.searches[1], .metavar = "DIR", .help = "likewise"},
      {.name = "mem-search", .type = CLI_STRING, .out = &c.searches[2], .metavar = "DIR", .help = "likewise"},
      {.name = "labels",
       .type = CLI_STRING,
       .out = &c.labels,
       .metavar = "NAME,...",
       .help = "what to call the checkpoints that are given, in this order"},
      {.name = "data", .type = CLI_STRING, .out = &c.data, .metavar = "FILE", .required = true, .help = "a token file"},
      {.name = "rows",
       .type = CLI_INT,
       .out = &c.at_most,
       .metavar = "N",
       .min = 0,
       .max = 1e12,
       .help = "at most so many rows of it, spread evenly; 0: all"},
      {.name = "context",
       .type = CLI_INT,
       .out = &c.context,
       .metavar = "N",
       .min = 0,
       .max = 1 << 24,
       .help = "tokens a row; 0: the shortest of the models'"},
      {.name = "budgets",
       .type = CLI_STRING,
       .out = &c.budgets,
       .metavar = "K,...",
       .help = "tokens kept, the same in every layer"},
      {.name = "policies",
       .type = CLI_STRING,
       .out = &c.policies,
       .metavar = "NAME,...",
       .help = "which, selective only on models that have it; else all"},
      ROWS_OPTIONS(&c.rows),
      CLI_POLICY_CHOICES_OPTIONS(&c.choices),
      {.name = "out",
       .type = CLI_STRING,
       .out = &c.out,
       .metavar = "DIR",
       .required = true,
       .help = "receives compare.json, compare.csv and compare.svg"},
      CLI_COMMON_OPTIONS(&c.common)};
  const struct cli_spec spec = {.command = "winnow prune compare",
                                .summary = "Perplexity against tokens kept: every policy on every checkpoint given, on "
                                           "the same data at the same budgets.",
                                .options = options,
                                .option_count = CLI_COUNT(options)};
  int code = cli_parse(&spec, argc, argv, NULL);
  if (code == CLI_GO && !c.dirs[0] && !c.dirs[1] && !c.dirs[2])
    code = cli_usage_error(spec.command, "give at least one of --standard, --selective and --mem");
  for (int i = 0; i < SUBJECTS && code == CLI_GO; i++)
    if (c.searches[i] && !c.dirs[i])
      code = cli_usage_error(spec.command, "a search is given for a checkpoint that is not (%s)", subject_names[i]);
  if (code == CLI_GO) code = read_labels(&c);
  if (code == CLI_GO) code = read_budgets(&c);
  if (code == CLI_GO) code = read_policies(&c);
  if (code == CLI_GO) code = cli_make_folder(c.out);
  wn_context *ctx = NULL;
  if (code == CLI_GO) code = cli_context_open(&c.common, &ctx);
  if (!code) code = run_compare(ctx, &c);
  wn_context_destroy(ctx);
  return code;
}

int cmd_prune(int argc, char **argv) {
  static const struct cli_command commands[] = {{"search", "budgets for every layer, found greedily", search},
                                                {"compare", "all eviction policies at the same budgets", compare}};
  return cli_dispatch("winnow prune", "Context pruning: how many tokens each layer needs, and what goes first.",
                      commands, CLI_COUNT(commands), argc, argv);
}
