/* Written answers, from the files that winnow eval --answers saves: score by the share of the context that is evicted,
 * a curve for each method, and needle grids: score by depth of the needle and by length of the context. Files of one
 * method that evict as much are one setting: bench/referee has a file for each length. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/estimate.h"
#include "base/number.h"
#include "eval/questions.h"
#include "kv/budgets.h"
#include "report/section.h"

enum { DEPTHS = 10, LENGTHS = 40 };       /* of the grid: tenths of a context; lengths by half powers of two */
static const double answers_alike = 0.02; /* shares evicted of files that are one setting differ by less */

struct answers_cell {
  double sum;
  int64_t count;
};

/* What the files of a setting say. */
struct answers_setting {
  char method[160];
  wn_estimate score;
  double kept, tokens, evicted; /* tokens of the contexts, and the part of them */
  double *scores;               /* [count] */
  int64_t count;
  size_t room;
  struct answers_cell needles[LENGTHS][DEPTHS];
};

/* What evicts, under the name that papers have for it; "none": nothing does. */
static wn_status answers_name(wn_context *ctx, const char *where, json_t *object, char *out, size_t bytes) {
  wn_budgets b, named;
  if (!object) {
    snprintf(out, bytes, "none");
    return WN_OK;
  }
  wn_budgets_init(&b, NULL);
  WN_TRY(wn_budgets_from_json(ctx, where, object, &b));
  const char *name = b.method ? wn_method_name(b.method, NULL) : wn_policy_name(b.policy);
  for (int i = 0; wn_budgets_named_at(i); i++) {
    wn_budgets_init(&named, NULL);
    wn_budgets_named(wn_budgets_named_at(i), &named);
    if (named.policy == b.policy && named.method == b.method && named.allot == b.allot && named.critical == b.critical)
      name = wn_budgets_named_at(i);
  }
  snprintf(out, bytes, "%s%s%s", name, b.when == WN_WHEN_PROMPT ? "" : ", ",
           b.when == WN_WHEN_PROMPT ? "" : wn_when_name(b.when));
  wn_budgets_clear(&b);
  return WN_OK;
}

/* A number of a line, at least 0 and at most `most`. */
static wn_status answers_number(wn_context *ctx, const char *where, const json_t *line, const char *field, double most,
                                double *out) {
  const json_t *value = json_object_get(line, field);
  *out = json_number_value(value);
  if (json_is_number(value) && *out >= 0 && *out <= most) return WN_OK;
  return wn_fail(ctx, WN_ERR_FORMAT,
                 "%s: field \"%s\": expected a number from 0 to %.9g, as winnow eval --answers saves it", where, field,
                 most);
}

static wn_status answers_add(wn_context *ctx, const char *where, const json_t *line, struct answers_setting *f) {
  double score, length, kept, depth = -1;
  WN_TRY(answers_number(ctx, where, line, "score", 1, &score));
  WN_TRY(answers_number(ctx, where, line, "context_tokens", INT32_MAX, &length));
  WN_TRY(answers_number(ctx, where, line, "context_kept", length, &kept));
  if (json_object_get(line, "depth")) WN_TRY(answers_number(ctx, where, line, "depth", 1, &depth));
  score *= 100;
  WN_TRY(WN_GROW(ctx, "scores", &f->scores, f->count, 1, &f->room));
  f->scores[f->count++] = score;
  f->kept += kept;
  f->tokens += length;
  if (depth < 0 || !(length >= 1)) return WN_OK;
  const int place = (int)(depth * DEPTHS), size = (int)lround(2 * log2(length));
  if (size >= LENGTHS) return WN_OK;
  struct answers_cell *cell = &f->needles[size][place < DEPTHS ? place : DEPTHS - 1];
  cell->sum += score;
  cell->count++;
  return WN_OK;
}

/* The setting's figures, from what has been added. */
static void answers_sum(struct answers_setting *f) {
  f->score = wn_estimate_ratio(&(struct wn_row_numbers){.sum = f->scores, .count = (size_t)f->count, .stride = 1});
  f->evicted = f->tokens > 0 ? 1 - f->kept / f->tokens : 0;
}

static wn_status answers_read(wn_context *ctx, const char *path, struct answers_setting *f) {
  struct wn_lines lines = {0};
  char where[WN_QUESTION_WHERE];
  json_t *line = NULL;
  wn_status status = wn_lines_open(ctx, path, &lines);
  for (bool head = true; status == WN_OK; head = false) {
    status = wn_question_line_next(ctx, &lines, where, &line);
    if (status != WN_OK || !line) break;
    if (head)
      status = answers_name(ctx, where, json_object_get(line, "budgets"), f->method, sizeof f->method);
    else
      status = answers_add(ctx, where, line, f);
    json_decref(line);
  }
  if (status == WN_OK && f->count == 0) status = wn_fail(ctx, WN_ERR_FORMAT, "%s: no answer in it", path);
  if (status == WN_OK) answers_sum(f);
  wn_lines_close(&lines);
  return status;
}

/* Adds a file to the setting among the first n that it belongs to, if there is one. */
static wn_status answers_merge(wn_context *ctx, struct answers_setting *all, int n, struct answers_setting *file,
                               bool *merged) {
  struct answers_setting *f = all;
  while (f < all + n && (strcmp(f->method, file->method) != 0 || fabs(f->evicted - file->evicted) >= answers_alike))
    f++;
  *merged = f < all + n;
  if (!*merged) return WN_OK;
  WN_TRY(WN_GROW(ctx, "scores", &f->scores, f->count, file->count, &f->room));
  memcpy(f->scores + f->count, file->scores, (size_t)file->count * sizeof *f->scores);
  f->count += file->count, f->kept += file->kept, f->tokens += file->tokens;
  for (int i = 0; i < LENGTHS * DEPTHS; i++) {
    struct answers_cell *to = &f->needles[i / DEPTHS][i % DEPTHS], *from = &file->needles[i / DEPTHS][i % DEPTHS];
    to->sum += from->sum, to->count += from->count;
  }
  answers_sum(f);
  return WN_OK;
}

/* ---- curves ---- */

/* The next setting of a curve after the share `after`: of this method, or of none. NULL: it ends. */
static const struct answers_setting *answers_next(const struct answers_setting *files, int n, const char *method,
                                                  double after) {
  const struct answers_setting *next = NULL;
  for (int i = 0; i < n; i++) {
    const struct answers_setting *f = &files[i];
    if ((strcmp(f->method, method) != 0 && strcmp(f->method, "none") != 0) || !(f->evicted > after)) continue;
    if (!next || f->evicted < next->evicted) next = f;
  }
  return next;
}

/* A method's curve, and its band: one standard error below and above. */
static void answers_draw_curve(struct wn_drawing *d, const struct answers_setting *files, int n, const char *method,
                               int colour) {
  int64_t count = 0;
  for (const struct answers_setting *f = NULL; (f = answers_next(files, n, method, f ? f->evicted : -1)); count++) {
  }
  double *m = wn_drawing_line(d, count, colour, colour / 8, method);
  const struct answers_setting *f = NULL;
  for (int64_t k = 0; m && (f = answers_next(files, n, method, f ? f->evicted : -1)); k++) {
    m[k] = 100 * f->evicted;
    m[3 * count + k] = f->score.value;
    m[4 * count + k] = f->score.error;
  }
}

static wn_status answers_draw_curves(struct wn_report *r, const struct answers_setting *files, int n) {
  struct wn_drawing d;
  int colours = 0;
  int64_t least = files[0].count, most = least;
  for (int i = 1; i < n; i++) {
    if (files[i].count < least) least = files[i].count;
    if (files[i].count > most) most = files[i].count;
  }
  wn_drawing_begin(&d, r->ctx, "answers", -1, "Score of written answers", NULL);
  wn_print(
      d.about, sizeof d.about,
      "Mean score, 0 to 100, by the part of the context that is evicted; the band: a standard error on both sides; "
      "%lld to %lld answers each. Nothing evicted: the full cache.",
      (long long)least, (long long)most);
  d.figure.axes = 1;
  d.figure.x[0].label = "% of the context evicted";
  d.figure.y.label = "score";
  d.figure.z = "standard error";
  for (int i = 0; i < n; i++) {
    bool drawn = false;
    for (int k = 0; k < i; k++) drawn |= !strcmp(files[k].method, files[i].method);
    if (drawn || (!strcmp(files[i].method, "none") && n > 1)) continue;
    answers_draw_curve(&d, files, n, files[i].method, colours++);
  }
  return wn_report_add(r, &d);
}

/* ---- needles ---- */

/* The lengths that have cells: how many cells, and the smallest step between two of them, 2 (a power of two) at most.
 */
static int64_t answers_lengths(const struct answers_setting *f, int *step) {
  int64_t cells = 0;
  int last = -1;
  *step = 2;
  for (int s = 0; s < LENGTHS; s++) {
    int64_t here = 0;
    for (int p = 0; p < DEPTHS; p++) here += f->needles[s][p].count > 0;
    if (here && last >= 0 && s - last < *step) *step = s - last;
    if (here) last = s;
    cells += here;
  }
  return cells;
}

static wn_status answers_draw_needles(struct wn_report *r, const struct answers_setting *f, int number) {
  struct wn_drawing d;
  char name[200];
  int step;
  const int64_t count = answers_lengths(f, &step);
  if (count == 0) return WN_OK;
  wn_print(name, sizeof name, "%s, %.3g%% evicted", f->method, 100 * f->evicted);
  wn_drawing_begin(&d, r->ctx, "needles", number, "Needles", name);
  d.figure.about = "Mean score by where the needle stands in the context, and by the context's length.";
  d.figure.axes = 1;
  d.figure.small = true;
  d.figure.x[0] = (wn_figure_axis){"tokens of the context", true};
  d.figure.y.label = "depth, %";
  d.figure.z = "score", d.figure.z_max = 100;
  d.figure.cell[0] = exp2(step / 2.0), d.figure.cell[1] = 100.0 / DEPTHS;
  double *m = wn_drawing_line(&d, count, 0, 0, "needles");
  for (int64_t i = 0, k = 0; m && i < LENGTHS * DEPTHS; i++) {
    const struct answers_cell *cell = &f->needles[i / DEPTHS][i % DEPTHS];
    if (cell->count == 0) continue;
    const int64_t size = i / DEPTHS; /* in half powers of two */
    m[k] = exp2((double)size / 2.0);
    m[3 * count + k] = 100 * ((double)(i % DEPTHS) + 0.5) / DEPTHS;
    m[4 * count + k++] = cell->sum / (double)cell->count;
  }
  return wn_report_add(r, &d);
}

static wn_status answers_draw(struct wn_report *r) {
  struct answers_setting *all;
  int n = 0;
  WN_TRY(WN_ALLOC(r->ctx, "answers", r->input_count + 1, &all));
  wn_status status = WN_OK;
  for (int i = 0; i < r->input_count && status == WN_OK; i++) {
    bool merged = false;
    if (!r->inputs[i].answers) continue;
    status = answers_read(r->ctx, r->inputs[i].path, &all[n]);
    if (status == WN_OK) status = answers_merge(r->ctx, all, n, &all[n], &merged);
    if (status == WN_OK && !merged) {
      n++;
      continue;
    }
    wn_free(all[n].scores);
    all[n] = (struct answers_setting){0};
  }
  if (status == WN_OK) status = answers_draw_curves(r, all, n);
  for (int i = 0; i < n && status == WN_OK; i++) status = answers_draw_needles(r, &all[i], i);
  for (int i = 0; i < n; i++) wn_free(all[i].scores);
  wn_free(all);
  return status;
}

const struct wn_section wn_section_answers = {"answers", "Written answers", WN_NEEDS_ANSWERS, answers_draw};
