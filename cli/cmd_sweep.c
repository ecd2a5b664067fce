/* winnow sweep: a grid over recipe keys. Every combination of values is a run in a folder of its own. Finished runs are
 * skipped, unfinished ones continued. At the end there is one table and one report of all runs. */
#include "cmd.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/report.h>
#include <winnow/train.h>
#include "files.h"
#include "recipe.h"
#include "signals.h"
#include "train_run.h"

enum { SWEEP_AXES = 8, SWEEP_RUNS = 256, SWEEP_NAME = 200, SWEEP_ASSIGNMENT = 400 };

struct sweep_axis {
  char key[SWEEP_NAME];
  char text[4096];                /* its values, cut apart */
  const char *values[SWEEP_RUNS]; /* [count] */
  int count;
};

struct sweep_run {
  char name[SWEEP_NAME], path[4096];
  char assignments[SWEEP_AXES][SWEEP_ASSIGNMENT];
  int64_t step, saved, steps;    /* last step in the log (may be ahead); step of the checkpoint; steps of the recipe */
  double best, last, speed;      /* NAN: unknown */
  double best_error, last_error; /* over validation rows; NAN: unknown */
  bool measured;                 /* the last step was evaluated */
};

struct sweep {
  struct cli_common common;
  const char *config, *out;
  struct cli_list sets, grid;
  bool dry_run;
  wn_context *ctx;
  struct sweep_axis axes[SWEEP_AXES];
  int axis_count;
  struct sweep_run *runs; /* [run_count] */
  int run_count;
};

/* --- the grid --- */

/* Parses KEY=V1,V2,...; if there is a semicolon, semicolons separate the values, which may then contain commas. */
static int sweep_read_axis(const char *text, struct sweep_axis *axis) {
  const char *equals = strchr(text, '=');
  const size_t n = equals ? (size_t)(equals - text) : 0;
  if (n == 0 || n >= sizeof axis->key || !equals[1])
    return cli_usage_error("winnow sweep", "--grid: \"%s\" is not KEY=VALUE,VALUE,...", text);
  memcpy(axis->key, text, n);
  const char mark[2] = {strchr(equals, ';') ? ';' : ',', 0};
  if (snprintf(axis->text, sizeof axis->text, "%s", equals + 1) >= (int)sizeof axis->text)
    return cli_usage_error("winnow sweep", "--grid: %s has too many values", axis->key);
  for (char *at = axis->text, *end; at; at = end) {
    end = strpbrk(at, mark);
    if (end) *end++ = 0;
    if (!*at || strlen(at) + n + 2 > SWEEP_ASSIGNMENT)
      return cli_usage_error("winnow sweep", "--grid: \"%s\" has a value that is empty or too long", text);
    if (axis->count == SWEEP_RUNS) return cli_usage_error("winnow sweep", "--grid: more than %d values", SWEEP_RUNS);
    for (int i = 0; i < axis->count; i++)
      if (!strcmp(axis->values[i], at))
        return cli_usage_error("winnow sweep", "--grid: %s has the value %s twice", axis->key, at);
    axis->values[axis->count++] = at;
  }
  return 0;
}

/* The last part of a key, or the whole key if two axes end alike. */
static const char *sweep_short(const struct sweep *s, int a) {
  const char *dot = strrchr(s->axes[a].key, '.'), *end = dot ? dot + 1 : s->axes[a].key;
  for (int b = 0; b < s->axis_count; b++) {
    const char *other = strrchr(s->axes[b].key, '.');
    if (b != a && !strcmp(end, other ? other + 1 : s->axes[b].key)) return s->axes[a].key;
  }
  return end;
}

/* Names a run "lr-0.001_width-64", with characters that every file system accepts. */
static int sweep_name_run(const struct sweep *s, struct sweep_run *run, int number) {
  size_t n = 0;
  for (int a = s->axis_count - 1, rest = number; a >= 0; rest /= s->axes[a].count, a--)
    snprintf(run->assignments[a], sizeof run->assignments[a], "%s=%s", s->axes[a].key,
             s->axes[a].values[rest % s->axes[a].count]);
  for (int a = 0; a < s->axis_count && n < sizeof run->name; a++)
    n += (size_t)snprintf(run->name + n, sizeof run->name - n, "%s%s-%s", a ? "_" : "", sweep_short(s, a),
                          strchr(run->assignments[a], '=') + 1);
  if (n >= sizeof run->name) return cli_error("--grid: the names of its runs are longer than %d letters", SWEEP_NAME);
  for (char *c = run->name; *c; c++)
    if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_+", *c)) *c = '~';
  if (!cli_join(run->path, sizeof run->path, s->out, run->name)) return cli_error("%s: the path is too long", s->out);
  return 0;
}

static int sweep_plan(struct sweep *s) {
  int64_t count = 1;
  int code = 0;
  if (s->grid.count == 0 || s->grid.count > SWEEP_AXES)
    return cli_usage_error("winnow sweep", "--grid: from 1 to %d of them", SWEEP_AXES);
  for (int i = 0; i < s->grid.count; i++) {
    if ((code = sweep_read_axis(s->grid.items[i], &s->axes[s->axis_count++]))) return code;
    for (int b = 0; b + 1 < s->axis_count; b++)
      if (!strcmp(s->axes[b].key, s->axes[s->axis_count - 1].key))
        return cli_usage_error("winnow sweep", "--grid: %s is given twice", s->axes[b].key);
    count *= s->axes[i].count;
    if (count > SWEEP_RUNS) return cli_usage_error("winnow sweep", "--grid: more than %d runs", SWEEP_RUNS);
  }
  if (!(s->runs = calloc((size_t)count, sizeof *s->runs))) return cli_error("out of memory");
  for (s->run_count = 0; s->run_count < count && !code; s->run_count++) {
    code = sweep_name_run(s, &s->runs[s->run_count], s->run_count);
    for (int i = 0; i < s->run_count && !code; i++)
      if (!strcmp(s->runs[i].name, s->runs[s->run_count].name))
        code = cli_error("--grid: two of its runs would be named %s", s->runs[i].name);
  }
  return code;
}

static int sweep_recipe(struct sweep *s, const struct sweep_run *run, wn_recipe *recipe) {
  struct cli_list sets = {.count = s->sets.count + s->axis_count};
  if (!(sets.items = calloc((size_t)sets.count, sizeof *sets.items))) return cli_error("out of memory");
  for (int i = 0; i < s->sets.count; i++) sets.items[i] = s->sets.items[i];
  for (int a = 0; a < s->axis_count; a++) sets.items[s->sets.count + a] = run->assignments[a];
  const int code = cli_recipe_load(s->ctx, s->config, &sets, recipe);
  cli_list_clear(&sets);
  return code;
}

/* Checks that the sweep in the folder had the same settings for all runs: it can only continue with these. */
static int sweep_check_folder(const struct sweep *s) {
  char path[4096];
  json_t *sets = json_array(), *there, *config = s->config ? cli_read_json(s->config) : NULL;
  for (int i = 0; i < s->sets.count; i++) json_array_append_new(sets, json_string(s->sets.items[i]));
  json_t *now = json_pack("{s:o, s:o}", "config", config ? config : json_object(), "set", sets);
  int code = cli_make_folder(s->out);
  if (!code && !cli_join(path, sizeof path, s->out, "sweep.json")) code = cli_error("%s: the path is too long", s->out);
  there = code ? NULL : cli_read_json(path);
  if (!code && !there && cli_exists(path))
    code = cli_error("%s: not the JSON that a sweep writes; another --out, or the file as it was", path);
  else if (there && !json_equal(there, now))
    code =
        cli_error("%s: the sweep there has another --config or other --set; another --out, or the same as there", path);
  for (int i = 0; i < s->run_count && !code && !there; i++)
    if (wn_train_can_resume(s->runs[i].path))
      code = cli_error("%s: a run is there and no %s that says how it was made; another --out, or the file as it was",
                       s->runs[i].path, path);
  char *text = code || there ? NULL : json_dumps(now, JSON_INDENT(1));
  if (text && wn_file_save(s->ctx, path, text, strlen(text)) != WN_OK) code = cli_fail(s->ctx, WN_ERR_IO);
  free(text);
  json_decref(there);
  json_decref(now);
  return code;
}

/* --- runs --- */

/* Reads the run's log, if there is one. */
static void sweep_read_log(struct sweep *s, struct sweep_run *run) {
  wn_train_log log = {0};
  uint64_t tokens;
  run->best = run->last = run->speed = run->best_error = run->last_error = NAN;
  run->step = 0;
  run->measured = false;
  cli_train_saved(run->path, &run->saved, &tokens);
  if (!cli_exists(run->path) || wn_train_log_load(s->ctx, run->path, &log) != WN_OK) return;
  for (int64_t k = 0; k < log.count; k++) {
    if (!isfinite(log.val_loss[k])) continue;
    run->last = log.val_loss[k], run->last_error = log.val_loss_stderr[k];
    if (!(run->best <= run->last)) run->best = run->last, run->best_error = run->last_error; /* NAN: the first */
  }
  if (log.count > 0) {
    run->step = (int64_t)log.step[log.count - 1];
    run->measured = isfinite(log.val_loss[log.count - 1]);
    run->speed = log.tokens_per_second[log.count - 1];
  }
  wn_train_log_clear(&log);
}

static int sweep_train(struct sweep *s, struct sweep_run *run, int number) {
  struct cli_views views = CLI_VIEWS_DEFAULTS;
  struct cli_common common = s->common;
  wn_recipe recipe;
  const int code = sweep_recipe(s, run, &recipe);
  const bool resume = wn_train_can_resume(run->path);
  if (code) return code;
  /* If the last evaluation was interrupted the run is continued, which makes it. */
  if (resume && run->saved >= run->steps && (run->measured || recipe.train.eval_every == 0)) {
    cli_note(&s->common, "[%d/%d] %s: done", number + 1, s->run_count, run->name);
    return 0;
  }
  common.quiet |= common.json;
  common.json = false;
  cli_note(&s->common, "[%d/%d] %s%s", number + 1, s->run_count, run->name, resume ? ": continued" : "");
  return cli_train_run(&common, s->ctx, &recipe, run->path, resume, &views, "train", "trained");
}

/* --- the result --- */

static int sweep_by_loss(const void *a, const void *b) {
  const struct sweep_run *const *x = a, *const *y = b;
  if (isnan((*x)->best) || isnan((*y)->best)) return isnan((*x)->best) - isnan((*y)->best);
  return ((*x)->best > (*y)->best) - ((*x)->best < (*y)->best);
}

static int sweep_tell(const struct sweep *s, const struct sweep_run *const *order, const char *page) {
  if (s->common.json) {
    json_t *list = json_array();
    for (int i = 0; i < s->run_count; i++) {
      json_t *values = json_object();
      for (int a = 0; a < s->axis_count; a++)
        json_object_set_new(values, s->axes[a].key, json_string(strchr(order[i]->assignments[a], '=') + 1));
      json_array_append_new(
          list, json_pack("{s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "run", cli_text(order[i]->path), "values",
                          values, "step", (json_int_t)order[i]->step, "steps", (json_int_t)order[i]->steps,
                          "best_val_loss", cli_number(order[i]->best), "best_val_loss_stderr",
                          cli_number(order[i]->best_error), "val_loss", cli_number(order[i]->last), "val_loss_stderr",
                          cli_number(order[i]->last_error), "tokens_per_second", cli_number(order[i]->speed)));
    }
    return cli_print_json(json_pack("{s:o, s:o, s:o}", "out", cli_text(s->out), "runs", list, "report",
                                    page ? cli_text(page) : json_null()));
  }
  printf("%-40s %9s %14s %9s %11s %9s\n", "run", "steps", "best val loss", "+-", "perplexity", "tokens/s");
  for (int i = 0; i < s->run_count; i++) {
    const struct sweep_run *run = order[i];
    char loss[32] = "-", error[32] = "-", perplexity[32] = "-"; /* "-": no evaluation; one row has no error */
    if (!isnan(run->best)) {
      snprintf(loss, sizeof loss, "%.4f", run->best);
      snprintf(perplexity, sizeof perplexity, "%.2f", exp(run->best));
    }
    if (!isnan(run->best_error)) snprintf(error, sizeof error, "%.4f", run->best_error);
    printf("%-40s %9" PRId64 " %14s %9s %11s %9s\n", run->name, run->step, loss, error, perplexity,
           isnan(run->speed) ? "-" : cli_count(run->speed));
  }
  return 0;
}

static int sweep_report(struct sweep *s, char *page, size_t bytes) {
  const char *inputs[SWEEP_RUNS];
  char figures[4096];
  wn_report_options o;
  int count = 0;
  for (int i = 0; i < s->run_count; i++)
    if (s->runs[i].step > 0) inputs[count++] = s->runs[i].path;
  if (count == 0) return cli_error("%s: no run has a log", s->out);
  if (!cli_join(page, bytes, s->out, "report.html") || !cli_join(figures, sizeof figures, s->out, "report-figures"))
    return cli_error("%s: the path is too long", s->out);
  wn_report_options_init(&o, sizeof o);
  o.inputs = inputs;
  o.input_count = count;
  o.sections = "training";
  o.title = s->out;
  o.command = "winnow sweep";
  o.figures = figures;
  const wn_status status = wn_report_save(s->ctx, &o, page, NULL);
  return status == WN_OK ? 0 : cli_fail(s->ctx, status);
}

static int sweep_finish(struct sweep *s) {
  char page[4096];
  const struct sweep_run *order[SWEEP_RUNS];
  for (int i = 0; i < s->run_count; i++) order[i] = &s->runs[i];
  qsort(order, (size_t)s->run_count, sizeof *order, sweep_by_loss);
  int code = sweep_report(s, page, sizeof page);
  const int told = sweep_tell(s, order, code ? NULL : page);
  if (!code) cli_note(&s->common, "%s", page);
  return code ? code : told;
}

static int sweep_all(struct sweep *s) {
  int failed = 0, code = 0;
  wn_recipe recipe;
  for (int i = 0; i < s->run_count; i++) { /* report a wrong value before hours of other runs */
    code = sweep_recipe(s, &s->runs[i], &recipe);
    if (code) return code;
    s->runs[i].steps = recipe.train.steps;
    if (s->dry_run && !s->common.json) puts(s->runs[i].path);
  }
  if (s->dry_run) return 0;
  code = sweep_check_folder(s);
  if (code) return code;
  for (int i = 0; i < s->run_count; i++) {
    sweep_read_log(s, &s->runs[i]);
    code = sweep_train(s, &s->runs[i], i);
    if (code == CLI_INTERRUPTED) {
      cli_note(&s->common, "winnow: the same command goes on with the sweep");
      return code;
    }
    failed += code != 0; /* the error was reported; the other runs go on */
    sweep_read_log(s, &s->runs[i]);
  }
  code = sweep_finish(s);
  return failed ? cli_error("%d of %d runs failed", failed, s->run_count) : code;
}

static const struct cli_option sweep_options[] = {
    CLI_OPTION(struct sweep, config, "config", "FILE", "the recipe, JSON"),
    CLI_OPTION(struct sweep, sets, "set", "KEY=VALUE", "changes one key of the recipe, for all runs"),
    CLI_OPTION(struct sweep, grid, "grid", "KEY=V1,V2,...",
               "the values of one key; every combination of all grids is a run. Values with commas: KEY=V1;V2"),
    CLI_OPTION(struct sweep, out, "out", "DIR", "receives a folder for each run, sweep.json and report.html",
               .required = true),
    CLI_OPTION(struct sweep, dry_run, "dry-run", NULL, "check every recipe and print the runs' folders alone"),
    CLI_COMMON_OPTIONS(struct sweep, common)};

static const struct cli_spec sweep_spec = {
    .command = "winnow sweep",
    .summary =
        "Trains a model for every combination of values of recipe keys, one after the other, and writes one report\n"
        "of all. The same command goes on where it was interrupted, also with more values; finished runs stay.",
    CLI_TABLE(sweep_options),
    .epilog = "winnow sweep --config recipe.json --grid train.lr=0.001,0.003 --grid model.width=64,128 --out swept"};

int cmd_sweep(int argc, char **argv) {
  struct sweep s = {.common = CLI_COMMON_DEFAULTS};
  int code = cli_parse(&sweep_spec, argc, argv, &s, NULL);
  if (code == CLI_GO) code = sweep_plan(&s);
  if (code == CLI_GO) code = cli_context_open(&s.common, &s.ctx);
  if (!code) code = sweep_all(&s);
  wn_context_destroy(s.ctx);
  free(s.runs);
  cli_list_clear(&s.sets);
  cli_list_clear(&s.grid);
  return code;
}
