/* winnow analyze sweep: what thresholds tau from 0.05 to 1 cost, and the smallest that keeps enough quality. */
#include "analyze.h"

#include <stdlib.h>
#include <string.h>
#include <winnow/report.h>
#include "attention.h"
#include "files.h"

struct result {
  const wn_sweep_report *r;
  bool text, tasks;
  int64_t task_count;
};

/* ---- tasks ---- */

struct tasks {
  wn_sweep_task *items;
  int32_t **ids; /* [3 count] */
  int64_t count;
  size_t room[2];
};

static void sweep_tasks_clear(struct tasks *t) {
  for (int64_t i = 0; i < 3 * t->count; i++) wn_tokens_free(t->ids[i]);
  free(t->ids), free(t->items);
}

/* `prompt` with its {content} replaced. */
static char *sweep_fill(const char *prompt, const char *content) {
  const char *at = strstr(prompt, "{content}");
  const size_t n = strlen(prompt) + strlen(content) + 1;
  char *out = malloc(n);
  if (out) snprintf(out, n, "%.*s%s%s", (int)(at - prompt), prompt, content, at + strlen("{content}"));
  return out;
}

static int sweep_encode(struct analysis *a, const char *text, bool start, int32_t **ids, int64_t *count) {
  size_t n = 0;
  if (!text) return cli_error("out of memory");
  const bool bos = start && wn_tokenizer_bos(a->tok) >= 0;
  if (wn_tokenizer_encode(a->ctx, a->tok, text, strlen(text), bos, false, ids, &n) != WN_OK)
    return cli_error("%s", wn_context_error(a->ctx));
  *count = (int64_t)n;
  return 0;
}

/* One line: {"prompt": "... {content} ...", "content": "...", "answer": "..."}. */
static int sweep_add_task(struct analysis *a, const char *path, int64_t line, const json_t *object, struct tasks *t) {
  const char *prompt = json_string_value(json_object_get(object, "prompt"));
  const char *content = json_string_value(json_object_get(object, "content"));
  const char *answer = json_string_value(json_object_get(object, "answer"));
  const char *place = prompt ? strstr(prompt, "{content}") : NULL;
  if (!prompt || !content || !answer || !*answer || !place || strstr(place + 1, "{content}"))
    return cli_error("%s:%" PRId64
                     ": expected strings \"prompt\" (with {content} in it, once), \"content\" and \"answer\"",
                     path, line);
  if (CLI_GROW(&t->items, t->count, 1, &t->room[0]) || CLI_GROW(&t->ids, 3 * t->count, 3, &t->room[1])) return 1;
  wn_sweep_task *one = &t->items[t->count];
  int32_t **ids = t->ids + 3 * t->count++;
  ids[0] = ids[1] = ids[2] = NULL;
  char *whole = sweep_fill(prompt, content), *bare = sweep_fill(prompt, "");
  int code = sweep_encode(a, whole, true, &ids[0], &one->prompt_count);
  if (!code) code = sweep_encode(a, bare, true, &ids[1], &one->bare_count);
  if (!code) code = sweep_encode(a, answer, false, &ids[2], &one->answer_count);
  free(whole), free(bare);
  one->prompt = ids[0], one->bare = ids[1], one->answer = ids[2];
  if (!code && (one->bare_count < 1 || one->prompt_count < 1 || one->answer_count < 1))
    code = cli_error("%s:%" PRId64 ": %s has no tokens", path, line,
                     one->answer_count < 1 ? "\"answer\"" : "\"prompt\" without its {content}");
  return code;
}

static int sweep_load_tasks(struct analysis *a, const char *path, struct tasks *t) {
  char *text = NULL;
  if (analysis_tokenizer(a) != WN_OK) return cli_fail(a->ctx, WN_ERR_IO);
  int code = cli_read_lines(a->ctx, path, &text);
  int64_t line = 0;
  for (char *at = text, *one; !code && (one = cli_next_line(&at, &line));) {
    json_error_t error;
    json_t *object = json_loads(one, JSON_REJECT_DUPLICATES, &error);
    code = object ? sweep_add_task(a, path, line, object, t)
                  : cli_error("%s:%" PRId64 ": not JSON: %s", path, line, error.text);
    json_decref(object);
  }
  wn_text_free(text);
  if (!code && t->count == 0) code = cli_error("%s: no tasks", path);
  return code;
}

/* ---- results ---- */

static json_t *sweep_point_json(const struct result *s, const wn_sweep_point *p) {
  json_t *one = json_pack("{s:f}", "tau", p->tau);
  if (s->text) {
    json_object_set_new(one, "loss", json_real(p->loss));
    json_object_set_new(one, "perplexity", cli_number(p->perplexity));
    json_object_set_new(one, "accuracy", json_real(p->accuracy));
  }
  if (s->tasks) json_object_set_new(one, "exact_match", json_real(p->exact));
  return one;
}

static json_t *sweep_best_json(const struct result *s, int best) {
  return best < 0 ? json_null() : json_real(s->r->point[best].tau);
}

static json_t *sweep_result_json(const struct analysis *a, const struct result *s) {
  json_t *points = json_array();
  for (int i = 0; i < s->r->count; i++) json_array_append_new(points, sweep_point_json(s, &s->r->point[i]));
  json_t *baseline = sweep_point_json(s, &s->r->baseline);
  json_object_del(baseline, "tau");
  json_t *j = json_pack("{s:o, s:f, s:I, s:I, s:o, s:o, s:o}", "model", cli_text(a->model_dir), "gamma", s->r->gamma,
                        "tokens", (json_int_t)s->r->full.tokens, "tasks", (json_int_t)s->task_count, "baseline",
                        baseline, "full", sweep_point_json(s, &s->r->full), "taus", points);
  if (s->text) json_object_set_new(j, "best_by_loss", sweep_best_json(s, s->r->best_loss));
  if (s->text) json_object_set_new(j, "best_by_accuracy", sweep_best_json(s, s->r->best_accuracy));
  if (s->tasks) json_object_set_new(j, "best_by_tasks", sweep_best_json(s, s->r->best_exact));
  return j;
}

static void sweep_csv_line(FILE *f, const struct result *s, const char *name, const wn_sweep_point *p) {
  fprintf(f, "%s", name);
  if (s->text) fprintf(f, ",%.9g,%.9g,%.9g", p->loss, p->perplexity, p->accuracy);
  if (s->tasks) fprintf(f, ",%.9g", p->exact);
  fputc('\n', f);
}

static void sweep_result_csv(FILE *f, const void *what) {
  const struct result *s = what;
  char name[32];
  fprintf(f, "tau%s%s\n", s->text ? ",loss,perplexity,accuracy" : "", s->tasks ? ",exact_match" : "");
  sweep_csv_line(f, s, "baseline", &s->r->baseline);
  for (int i = 0; i < s->r->count; i++) {
    snprintf(name, sizeof name, "%.9g", s->r->point[i].tau);
    sweep_csv_line(f, s, name, &s->r->point[i]);
  }
}

static void sweep_print_line(const struct result *s, const char *name, const wn_sweep_point *p) {
  printf("%10s", name);
  if (s->text) printf("%10.4f%12.2f%10.4f", p->loss, p->perplexity, p->accuracy);
  if (s->tasks) printf("%14.4f", p->exact);
  putchar('\n');
}

static void sweep_print_best(const struct result *s, const char *metric, int best) {
  if (best < 0)
    printf("  by %-9s none\n", metric);
  else
    printf("  by %-9s %g\n", metric, s->r->point[best].tau);
}

static void sweep_result_print(const struct analysis *a, const void *what) {
  const struct result *s = what;
  char name[32];
  printf("%s", a->model_dir);
  if (s->text) printf(", %" PRIu64 " tokens", s->r->full.tokens);
  if (s->tasks) printf(", %" PRId64 " tasks", s->task_count);
  printf("\n\n       tau%s%s\n", s->text ? "      loss  perplexity  accuracy" : "", s->tasks ? "   exact match" : "");
  sweep_print_line(s, "no content", &s->r->baseline);
  for (int i = 0; i < s->r->count; i++) {
    snprintf(name, sizeof name, "%g", s->r->point[i].tau);
    sweep_print_line(s, name, &s->r->point[i]);
  }
  sweep_print_line(s, "all", &s->r->full);
  printf("\nthe smallest tau from which on %g of the improvement over no content is kept\n", s->r->gamma);
  if (s->text) sweep_print_best(s, "loss", s->r->best_loss), sweep_print_best(s, "accuracy", s->r->best_accuracy);
  if (s->tasks) sweep_print_best(s, "tasks", s->r->best_exact);
}

struct sweep {
  struct analysis analysis;
  const char *taus, *control, *svg, *tasks;
  wn_sweep_options choice;
};

static const struct cli_option sweep_options[] = {
    CLI_OPTION(struct sweep, taus, "taus", "A:B:STEP",
               "shares of the content's weight that are kept, or a list such as 0.5,0.9"),
    CLI_OPTION(struct sweep, tasks, "tasks", "FILE",
               "JSON lines with \"prompt\" (which contains {content}), \"content\", \"answer\""),
    CLI_OPTION(struct sweep, choice.gamma, "gamma", "X", "part of the improvement over no content that must be kept",
               .min = 0.001, .max = 0.999),
    CLI_CONTROL_OPTION(struct sweep, control),
    CLI_OPTION(struct sweep, svg, "svg", "FILE", "a plot: what is kept against tau"),
    ANALYSIS_OPTIONS(struct sweep, analysis)};

static const struct cli_spec sweep_spec = {
    .command = "winnow analyze sweep",
    .summary = "Perplexity, accuracy and answered tasks under a threshold tau: each row attends to the fewest tokens\n"
               "whose weights reach it. Finds the smallest tau that keeps enough of the performance.",
    CLI_TABLE(sweep_options),
    CLI_OPTIONAL("[DIR]"),
    .epilog =
        "After Fernandez, Unsal, \"How Much Attention is 'All You Need'?\", section 4.2. Without the content, each\n"
        "token of a text is predicted from the one before it alone, and tasks have the prompt without {content}. A\n"
        "task counts as answered where greedy decoding gives the answer's tokens."};

int analyze_sweep(int argc, char **argv) {
  struct sweep o = {.analysis = ANALYSIS_DEFAULTS, .taus = "0.05:1:0.05", .control = "special"};
  struct analysis *a = &o.analysis;
  struct tasks tasks = {0};
  wn_sweep_report *report = NULL;
  int32_t *ids = NULL;
  double taus[64];
  o.choice = (wn_sweep_options){.size = sizeof o.choice, .taus = taus, .tau_count = 64, .gamma = 0.95};
  int code = analysis_open(a, &sweep_spec, argc, argv, &o);
  if (!code) code = analysis_plot(a, "svg", o.svg);
  if (!code) code = analysis_taus(a, o.taus, taus, &o.choice.tau_count);
  if (!code) code = analysis_control(a, o.control, &ids, &o.choice.control_count);
  if (!code && !a->text && !a->data && !o.tasks)
    code = cli_usage_error(a->command, "a text or tasks are needed: --text, --data or --tasks");
  if (!code && o.tasks) code = sweep_load_tasks(a, o.tasks, &tasks);
  const bool text = a->text || a->data;
  if (!code) {
    const wn_analysis_input input = analysis_input(a);
    o.choice.control = ids, o.choice.tasks = tasks.items, o.choice.task_count = tasks.count;
    o.choice.progress = cli_progress_on, o.choice.user = &a->bar;
    a->eval.progress = NULL; /* progress counts shares, not batches */
    analysis_begin(a, "sweep", "shares");
    code = analysis_end(
        a, analysis_ended(a, wn_analyze_sweep(a->ctx, a->model, text ? &input : NULL, &o.choice, &report)));
  }
  const struct result s = {.r = report, .text = text, .tasks = tasks.count > 0, .task_count = tasks.count};
  if (!code) code = analysis_deliver(a, sweep_result_json(a, &s), sweep_result_csv, sweep_result_print, &s);
  if (!code && o.svg) code = analysis_end(a, wn_sweep_save_svg(a->ctx, report, "Performance under a threshold", o.svg));
  sweep_tasks_clear(&tasks);
  free(ids);
  wn_sweep_report_destroy(report);
  analysis_close(a);
  return code;
}
