/* winnow prune search: finds how many tokens each layer needs. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/report.h>
#include "budgets.h"
#include "estimate.h"
#include "prune.h"
#include "signals.h"
#include "together.h"

struct search {
  struct cli_common common;
  struct cli_policy_choices choices;
  struct cli_rows rows;
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

static void search_on_progress(void *user, const wn_prune_progress *p) {
  struct watch *w = user;
  const wn_prune_curve *c = p->curve;
  const wn_prune_point *last = &c->points[c->count - 1];
  char extra[256];
  /* The number of steps is not known, since the target decides. The bar shows progress towards the lowest possible
   * budgets. */
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

static int64_t search_count_differing(const wn_prune_curve *c, double *most) {
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

/* What a race saved: steps with one layer left, and the rows read in all steps, also as a part of what the exact search
 * reads, every layer that can be lowered. */
struct race {
  int64_t early, rows;
  double part;
};
static struct race search_count_race(const wn_prune_curve *c) {
  struct race race = {0};
  int64_t exact = 0;
  for (int64_t i = 1; i < c->count; i++) {
    const wn_prune_point *p = &c->points[i];
    int64_t can = 0;
    for (int64_t l = 0; l < c->layers; l++) can += p[-1].tokens[l] >= 2 * c->step;
    race.early += p->race_left == 1;
    race.rows += p->raced_rows + (p->race_left > 0 ? p->race_left : can) * c->search_rows;
    exact += can * c->search_rows;
  }
  race.part = exact > 0 ? (double)race.rows / (double)exact : 1;
  return race;
}

static const char *search_unit(const struct search *s) {
  return s->rows.long_only ? "document" : "block";
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
  json_object_set_new(j, "unit", json_string(search_unit(s)));
  json_object_set_new(j, "search_rows", json_integer((json_int_t)c->search_rows));
  json_object_set_new(j, "report_rows", json_integer((json_int_t)c->report_rows));
  cli_estimate_json_whole(j, "search_loss", &last->search_rows);
  cli_estimate_json_whole(j, "report_loss", &last->report_rows);
  cli_estimate_json_whole(j, "report_change", &last->report_change);
  cli_estimate_json_whole(j, "report_saving", &c->report_saving);
  json_object_set_new(j, "report_saving_open", cli_number(c->report_saving_open));
  json_object_set_new(j, "search_tokens", json_integer((json_int_t)c->search_tokens));
  json_object_set_new(j, "report_tokens", json_integer((json_int_t)c->report_tokens));
  if (isfinite(c->target_loss)) json_object_set_new(j, "target_perplexity", cli_number(exp(c->target_loss)));
  if (!isnan(c->plain_loss)) json_object_set_new(j, "verified", json_boolean(c->plain_loss == last->search_loss));
  if (last->tuned > 0) {
    char path[CLI_PATH_BYTES];
    json_object_set_new(j, "tuned_steps", json_integer(last->tuned));
    if (cli_join(path, sizeof path, s->out, "tuned")) json_object_set_new(j, "tuned", cli_text(path));
  }
  if (c->race > 0) {
    const struct race race = search_count_race(c);
    json_object_set_new(j, "race", json_real(c->race));
    json_object_set_new(j, "decided_early", json_integer((json_int_t)race.early));
    json_object_set_new(j, "rows_read", json_integer((json_int_t)race.rows));
    json_object_set_new(j, "rows_read_part", json_real(race.part));
  }
  if (c->checked) {
    double most;
    json_object_set_new(j, "differing_steps", json_integer(search_count_differing(c, &most)));
    json_object_set_new(j, "differing_by_at_most", json_real(most));
  }
  return j;
}

static void search_print_errors(const struct search *s, const wn_prune_curve *c) {
  const wn_prune_point *last = &c->points[c->count - 1];
  char rows[2][64], error[96];
  cli_estimate_rows((uint64_t)c->search_rows, search_unit(s), rows[0]);
  cli_estimate_rows((uint64_t)c->report_rows, search_unit(s), rows[1]);
  printf("loss           %.4f%s", last->search_loss, cli_estimate_interval(&last->search_rows, 4, error));
  printf(" over %s; report set %.4f%s over %s\n", rows[0], last->report_loss,
         cli_estimate_interval(&last->report_rows, 4, error), rows[1]);
  if (isfinite(last->report_change.value))
    printf("change         %+.4f%s nats on the report set, against no budgets, row by row\n", last->report_change.value,
           cli_estimate_interval(&last->report_change, 4, error));
  if (!isfinite(c->report_saving.value)) return;
  /* The last point's saving is that of a curve which passes the target nowhere. */
  printf("report set     %s%.2fx less at its own target", c->report_saving.value < last->saving ? "" : "at least ",
         c->report_saving.value);
  if (isfinite(c->report_saving.low))
    printf(" (95%%: %.2f to %.2f%s)", c->report_saving.low, c->report_saving.high,
           c->report_saving_open > 0.025 ? " or more: the search ends there" : "");
  printf("; error over %ss, budgets held fixed\n", search_unit(s));
}

static int search_report(const struct search *s, const wn_prune_curve *c) {
  const wn_prune_point *last = &c->points[c->count - 1], *first = &c->points[0];
  if (s->common.json) return cli_print_json(search_json(s, c));
  static const char *const ends[] = {
      [WN_PRUNE_OPEN] = "stopped; go on with --resume",
      [WN_PRUNE_TARGET] = "the next step would pass the target",
      [WN_PRUNE_FLOOR] = "no budget can be lowered further",
      [WN_PRUNE_STEPS] = "--max-steps reached; --resume continues",
  };
  printf("budgets        ");
  for (int64_t l = 0; l < c->layers; l++) printf("%s%" PRId64, l ? "," : "", last->tokens[l]);
  printf("\nmemory         %.2fx less (%" PRId64 " of %" PRId64 " tokens)\n", last->saving, last->total, first->total);
  printf("perplexity     %.4f on the search set (unpruned %.4f), %.4f on the report set (unpruned %.4f)\n",
         exp(last->search_loss), exp(first->search_loss), exp(last->report_loss), exp(first->report_loss));
  search_print_errors(s, c);
  const bool above = c->count == 1 && first->search_loss > c->target_loss;
  printf("steps          %" PRId64 " in %s: %s\n", c->count - 1, cli_duration(last->seconds),
         above ? "the target is below the perplexity without budgets" : ends[c->end]);
  if (last->tuned > 0) printf("fine-tuning    %" PRId64 " steps; the checkpoint is %s/tuned\n", last->tuned, s->out);
  if (c->race > 0) {
    const struct race race = search_count_race(c);
    printf(
        "race           %" PRId64 " of %" PRId64 " steps decided by a part of the rows; %.0f%% of the rows that the "
        "exact search reads; some step\n               differs from it with a probability of at most %g, by t tests\n",
        race.early, c->count - 1, 100 * race.part, c->race);
  }
  if (c->checked) {
    double most;
    const int64_t n = search_count_differing(c, &most);
    printf("check          %" PRId64 " of %" PRId64 " steps lowered another layer than the exact search would have%s",
           n, c->count - 1, n ? "" : "\n");
    if (n) printf(", at a loss of at most %.3g more\n", most);
  }
  printf("files          %s/search.json, curve.csv, curve.svg, budgets.json\n", s->out);
  return 0;
}

static wn_status search_save_curve(wn_context *ctx, const struct search *s, const wn_prune_curve *c) {
  char path[CLI_PATH_BYTES], title[512];
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

/* Parses "0.5%" or "0.005". */
static int search_read_tolerance(const char *text, double *out) {
  char *end;
  errno = 0;
  *out = strtod(text, &end);
  if (end == text || errno || !isfinite(*out) || *out < 0 || (*end && strcmp(end, "%")))
    return cli_usage_error("winnow prune search",
                           "--tolerance: \"%s\" is neither a part (0.005) nor a percentage (0.5%%)", text);
  if (*end) *out /= 100;
  return 0;
}

/* Parses "2GB", "512MiB". */
static int search_read_memory(const char *text, uint64_t *out) {
  double bytes;
  if (!wn_bytes_parse(text, &bytes))
    return cli_usage_error("winnow prune search",
                           "--memory: \"%s\" is not a number of bytes, such as 900kB, 2GB or 512MiB", text);
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
    return cli_usage_error("winnow prune search", "--finetune-every needs --finetune-steps");
  if (!any && (s->config || s->sets.count || tuning->lr > 0))
    return cli_usage_error("winnow prune search", "--config, --set and --finetune-lr are for fine-tuning: give "
                                                  "--finetune-steps or --finetune-after");
  if (any && s->save)
    return cli_usage_error("winnow prune search",
                           "--save: with fine-tuning the budgets are in the tuned checkpoint's folder");
  if (s->options.check && !s->options.lazy && !(s->options.race > 0))
    return cli_usage_error("winnow prune search",
                           "--check needs --lazy or --race: the exact search has nothing to compare");
  if (s->options.lazy && s->options.race > 0)
    return cli_usage_error("winnow prune search", "--lazy and --race exclude each other");
  if (s->tolerance && search_read_tolerance(s->tolerance, &s->options.tolerance)) return 2;
  if (s->memory && search_read_memory(s->memory, &s->options.memory)) return 2;
  cli_policy_set(s->policy, &s->options.budgets);
  if (cli_policy_choices_over("winnow prune search", &s->choices, &s->options.budgets)) return 2;
  return CLI_GO;
}

/* Reads the recipe for fine-tuning: --config, or the checkpoint's own; then --set. */
static int search_read_recipe(wn_context *ctx, struct search *s, wn_recipe *recipe) {
  char kept[CLI_PATH_BYTES];
  const char *path = cli_recipe_of(s->config, s->model, kept);
  if (!s->options.finetune.steps && !s->options.finetune.after) return 0;
  if (!path) return cli_error("%s has no recipe.json to fine-tune by: give --config", s->model);
  s->options.finetune.checkpoint = s->model;
  s->options.finetune.recipe = recipe;
  return cli_recipe_load(ctx, path, &s->sets, recipe);
}

static bool search_is_saved(const struct search *s) {
  char path[CLI_PATH_BYTES];
  return cli_join(path, sizeof path, s->out, "search.json") && cli_exists(path);
}

static int run_search(wn_context *ctx, struct search *s) {
  wn_model *model = NULL, *target = NULL;
  wn_recipe recipe;
  const int32_t token = s->rows.long_only ? cli_rows_token(ctx, &s->rows, NULL, s->model) : -1;
  int code = search_read_recipe(ctx, s, &recipe);
  if (code) return code;
  s->options.search =
      (wn_prune_data){.path = s->data, .rows = s->search_rows, .long_only = s->rows.long_only, .document_token = token};
  s->options.report = (wn_prune_data){
      .path = s->report, .rows = s->report_rows, .long_only = s->rows.long_only, .document_token = token};
  wn_status status = s->options.finetune.recipe
                         ? wn_model_load(ctx, s->model, WN_OPTIONS(wn_model_load_options, .as_float = true), &model)
                         : wn_model_load(ctx, s->model, NULL, &model);
  if (status == WN_OK && s->target_checkpoint) status = wn_model_load(ctx, s->target_checkpoint, NULL, &target);
  s->options.target_model = target;
  if (status == WN_OK) cli_tokens_check(ctx, s->options.search.path, s->model, model);
  wn_prune_curve curve = {0};
  if (status == WN_OK) {
    struct watch w = {.common = &s->common, .ctx = ctx};
    cli_progress_begin(&w.bar, &s->common, "search", "steps");
    cli_signals_begin(ctx);
    status = wn_prune_search(ctx, model, &s->options, s->out, s->resume, search_on_progress, &w, &curve);
    cli_signals_end();
    cli_progress_end(&w.bar);
  }
  if (status == WN_OK || status == WN_ERR_CANCELLED) {
    const bool speaks = cli_together_speaks(ctx);
    const wn_status saved = speaks ? search_save_curve(ctx, s, &curve) : WN_OK;
    if (saved != WN_OK)
      code = cli_fail(ctx, saved);
    else if (status == WN_ERR_CANCELLED)
      cli_note(&s->common, search_is_saved(s) ? "winnow: stopped; go on with the same command and --resume"
                                              : "winnow: stopped before the first step; nothing is saved");
    if (!code && speaks && curve.count > 0) code = search_report(s, &curve);
    if (!code && status == WN_ERR_CANCELLED) code = CLI_INTERRUPTED;
  } else {
    code = cli_fail(ctx, status);
  }
  wn_prune_curve_clear(&curve);
  wn_model_destroy(target);
  wn_model_destroy(model);
  return code;
}

static const struct cli_option search_options[] = {
    CLI_MODEL_OPTION(struct search, model),
    CLI_OPTION(struct search, data, "search", "FILE", "the token file that budgets are searched on", .required = true),
    CLI_OPTION(struct search, report, "report", "FILE",
               "a token file that the search does not use, measured after every step", .required = true),
    CLI_OPTION(struct search, search_rows, "search-rows", "N", "the most rows to take from it, spread evenly; 0: all",
               .min = 0, .max = 1e12),
    CLI_OPTION(struct search, report_rows, "report-rows", "N", "the same for --report", .min = 0, .max = 1e12),
    CLI_OPTION(struct search, options.context, "context", "N", "tokens per row; 0: the model's context", .min = 0,
               .max = 1 << 24),
    CLI_OPTION(
        struct search, options.read, "read", "N",
        "--when prompt and hold: the first tokens of each row, which are read in full and compressed; losses are of "
        "what follows. 0: half of the row",
        .min = 0, .max = 1 << 24),
    CLI_OPTION(struct search, policy, "policy", "NAME", "which token is evicted", .choices = cli_policy_names),
    CLI_ROWS_OPTIONS(struct search, rows),
    PRUNE_BATCH_OPTION(struct search, options.batch),
    CLI_POLICY_CHOICES_OPTIONS(struct search, choices),
    CLI_OPTION(struct search, options.step, "step", "C",
               "tokens that a step takes from a layer, and the smallest budget of a layer", .min = 1, .max = 1 << 24),
    CLI_OPTION(struct search, options.target, "target", "PPL", "stop before this perplexity would be exceeded",
               .min = 1e-9, .max = 1e300),
    CLI_OPTION(struct search, target_checkpoint, "target-checkpoint", "DIR",
               "stop at the unpruned perplexity of this checkpoint on the search set"),
    CLI_OPTION(struct search, tolerance, "tolerance", "PART",
               "stop at the model's own unpruned perplexity plus a part of it, such as 0.5%"),
    CLI_OPTION(struct search, options.max_steps, "max-steps", "N",
               "the most steps to take now; --resume continues. 0: no limit", .min = 0, .max = 1e9),
    CLI_OPTION(struct search, memory, "memory", "BYTES",
               "the most memory to use, such as 2GB; else half of the machine's"),
    CLI_OPTION(struct search, options.finetune.steps, "finetune-steps", "N",
               "training steps with the budgets in force after each step of the search; 0: none", .min = 0,
               .max = 1e12),
    CLI_OPTION(struct search, options.finetune.every, "finetune-every", "M",
               "fine-tune after every M steps of the search, and before the target ends it; 0: 1", .min = 0,
               .max = 1e9),
    CLI_OPTION(struct search, options.finetune.after, "finetune-after", "N",
               "training steps with the budgets in force after the search has ended; 0: none", .min = 0, .max = 1e12),
    CLI_OPTION(
        struct search, options.finetune.lr, "finetune-lr", "X",
        "the learning rate at the start of a fine-tuning round; 0: the rate at which the recipe's schedule ends. "
        "train.muon.lr changes by the same factor",
        .min = 0, .max = 1000),
    CLI_OPTION(struct search, config, "config", "FILE", "fine-tuning: a recipe; else the checkpoint's"),
    CLI_OPTION(struct search, sets, "set", "KEY=VALUE",
               "fine-tuning: changes one key of the recipe, such as data.train=FILE"),
    CLI_OPTION(struct search, options.plain, "plain", NULL, "search without reuse: the same result, slower"),
    CLI_OPTION(struct search, options.lazy, "lazy", NULL,
               "keep costs from earlier steps and renew only the cheapest: faster, but the result may differ"),
    CLI_OPTION(struct search, options.check, "check", NULL,
               "--lazy, --race: also run the exact search and count the steps that differ"),
    CLI_OPTION(struct search, options.race, "race", "DELTA",
               "do not evaluate a layer on all rows that is worse than another one on a part of them, by t tests: "
               "some step differs from the exact search with a probability of at most DELTA, "
               "such as 0.05, so far as the tests hold. 0: no race",
               .min = 0, .max = 0.999),
    CLI_OPTION(struct search, out, "out", "DIR",
               "receives search.json, curve.csv, curve.svg, budgets.json; and the checkpoint \"tuned\"",
               .required = true),
    CLI_OPTION(struct search, resume, "resume", NULL, "continue the search in --out"),
    CLI_OPTION(struct search, save, "save", NULL, "also write budgets.json into the checkpoint's folder"),
    CLI_COMMON_OPTIONS(struct search, common)};

static const struct cli_spec search_spec = {
    .command = "winnow prune search",
    .summary =
        "How many tokens each layer needs: starting from the whole context, each step takes C tokens from the\n"
        "layer where that costs least in perplexity, until the target would be exceeded (arXiv 2410.02703, section\n"
        "4).",
    CLI_TABLE(search_options),
    CLI_OPTIONAL("[DIR]"),
    .epilog = "Equal costs go to the lowest layer. An interrupted or killed search continues with --resume after its\n"
              "last saved step."};

int prune_search(int argc, char **argv) {
  struct search s = {.common = CLI_COMMON_DEFAULTS,
                     .choices = CLI_POLICY_CHOICES_DEFAULTS,
                     .policy = "selective",
                     .rows = CLI_ROWS_DEFAULTS};
  wn_prune_options_init(&s.options, sizeof s.options);
  int code = cli_parse_model(&search_spec, argc, argv, &s, true, &s.model);
  code = check_search(&s, code);
  wn_context *ctx = NULL;
  if (code == CLI_GO) code = cli_together_open(&s.common, &ctx);
  if (!code) code = run_search(ctx, &s);
  cli_together_close(ctx, code);
  cli_list_clear(&s.sets);
  return code;
}
