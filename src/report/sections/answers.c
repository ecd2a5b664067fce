/* Written answers, from the files that winnow eval --answers saves: score by the share of the context that is evicted,
 * a curve for each method, and the needle grid of each file: score by depth of the needle and by length of the context.
 */
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

enum { DEPTHS = 10, LENGTHS = 40 }; /* of the grid: tenths of a context; lengths by half powers of two */

struct answers_cell {
  double sum;
  int64_t count;
};

/* A file. */
struct answers_file {
  char method[160];
  wn_estimate score;
  double evicted; /* the part of the contexts */
  int64_t count;
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

static void answers_add(const json_t *line, struct answers_file *f, double *kept, double *tokens) {
  const double score = 100 * json_number_value(json_object_get(line, "score"));
  const json_t *depth = json_object_get(line, "depth");
  const double length = json_number_value(json_object_get(line, "context_tokens"));
  *kept += json_number_value(json_object_get(line, "context_kept"));
  *tokens += length;
  if (!json_is_number(depth) || !(length >= 1)) return;
  const int place = (int)(json_number_value(depth) * DEPTHS), size = (int)lround(2 * log2(length));
  if (place < 0 || place > DEPTHS || size >= LENGTHS) return;
  struct answers_cell *cell = &f->needles[size][place < DEPTHS ? place : DEPTHS - 1];
  cell->sum += score;
  cell->count++;
}

static wn_status answers_read(wn_context *ctx, const char *path, struct answers_file *f) {
  struct wn_lines lines = {0};
  char where[WN_QUESTION_WHERE];
  json_t *line = NULL;
  double kept = 0, tokens = 0, *scores = NULL;
  size_t room = 0;
  wn_status status = wn_lines_open(ctx, path, &lines);
  for (bool head = true; status == WN_OK; head = false) {
    status = wn_question_line_next(ctx, &lines, where, &line);
    if (status != WN_OK || !line) break;
    if (head) {
      status = answers_name(ctx, where, json_object_get(line, "budgets"), f->method, sizeof f->method);
    } else if (!json_is_number(json_object_get(line, "score"))) {
      status = wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"score\": expected a number, as winnow eval --answers saves it",
                       where);
    } else {
      status = WN_GROW(ctx, "scores", &scores, f->count, 1, &room);
      if (status == WN_OK) scores[f->count++] = 100 * json_number_value(json_object_get(line, "score"));
      if (status == WN_OK) answers_add(line, f, &kept, &tokens);
    }
    json_decref(line);
  }
  if (status == WN_OK && f->count == 0) status = wn_fail(ctx, WN_ERR_FORMAT, "%s: no answer in it", path);
  if (status == WN_OK) {
    f->score = wn_estimate_ratio(&(struct wn_row_numbers){.sum = scores, .count = (size_t)f->count, .stride = 1});
    f->evicted = tokens > 0 ? fmax(0, 1 - kept / tokens) : 0;
  }
  wn_free(scores);
  wn_lines_close(&lines);
  return status;
}

/* ---- curves ---- */

/* The next file of a curve after the share `after`: of this method, or of none. NULL: it ends. */
static const struct answers_file *answers_next(const struct answers_file *files, int n, const char *method,
                                               double after) {
  const struct answers_file *next = NULL;
  for (int i = 0; i < n; i++) {
    const struct answers_file *f = &files[i];
    if ((strcmp(f->method, method) != 0 && strcmp(f->method, "none") != 0) || !(f->evicted > after)) continue;
    if (!next || f->evicted < next->evicted) next = f;
  }
  return next;
}

/* A method's curve, and its band: one standard error below and above. */
static void answers_draw_curve(struct wn_drawing *d, const struct answers_file *files, int n, const char *method,
                               int colour) {
  static const struct {
    int side;
    const char *name;
  } lines[] = {{0, "%s"}, {-1, "%s, a standard error less"}, {1, "%s, a standard error more"}};
  int64_t count = 0;
  for (const struct answers_file *f = NULL; (f = answers_next(files, n, method, f ? f->evicted : -1)); count++) {
  }
  for (int i = 0; i < 3; i++) {
    char name[240];
    wn_print(name, sizeof name, lines[i].name, method);
    double *m = wn_drawing_line(d, count, colour, i > 0, name);
    const struct answers_file *f = NULL;
    for (int64_t k = 0; m && (f = answers_next(files, n, method, f ? f->evicted : -1)); k++) {
      m[k] = 100 * f->evicted;
      m[3 * count + k] = f->score.value + lines[i].side * f->score.error;
    }
  }
}

static wn_status answers_draw_curves(struct wn_report *r, const struct answers_file *files, int n) {
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
      "Mean score, 0 to 100, by the part of the context that is evicted, and a standard error on both sides; %lld to "
      "%lld answers each. Nothing evicted: the full cache.",
      (long long)least, (long long)most);
  d.figure.axes = 1;
  d.figure.x[0].label = "% of the context evicted";
  d.figure.y.label = "score";
  for (int i = 0; i < n; i++) {
    bool drawn = false;
    for (int k = 0; k < i; k++) drawn |= !strcmp(files[k].method, files[i].method);
    if (drawn || (!strcmp(files[i].method, "none") && n > 1)) continue;
    answers_draw_curve(&d, files, n, files[i].method, colours++);
  }
  return wn_report_add(r, &d);
}

/* ---- needles ---- */

static wn_status answers_draw_needles(struct wn_report *r, const struct answers_file *f, int number) {
  struct wn_drawing d;
  char name[200];
  int lines = 0;
  wn_print(name, sizeof name, "%s, %.3g%% evicted", f->method, 100 * f->evicted);
  wn_drawing_begin(&d, r->ctx, "needles", number, "Needles", name);
  d.figure.about = "Mean score by where the needle stands in the context, a line for each length.";
  d.figure.axes = 1;
  d.figure.small = true;
  d.figure.x[0].label = "depth, %";
  d.figure.y.label = "score";
  for (int s = 0; s < LENGTHS; s++) {
    int64_t count = 0, k = 0;
    char length[60];
    for (int p = 0; p < DEPTHS; p++) count += f->needles[s][p].count > 0;
    if (count == 0) continue;
    wn_print(length, sizeof length, "about %.0f tokens", exp2(s / 2.0));
    double *m = wn_drawing_line(&d, count, lines++, 0, length);
    for (int p = 0; m && p < DEPTHS; p++) {
      const struct answers_cell *cell = &f->needles[s][p];
      if (cell->count == 0) continue;
      m[k] = 100 * (p + 0.5) / DEPTHS;
      m[3 * count + k++] = cell->sum / (double)cell->count;
    }
  }
  if (lines > 0) return wn_report_add(r, &d);
  wn_drawing_clear(&d);
  return WN_OK;
}

static wn_status answers_draw(struct wn_report *r) {
  struct answers_file *files;
  int n = 0;
  WN_TRY(WN_ALLOC(r->ctx, "answers", r->input_count, &files));
  wn_status status = WN_OK;
  for (int i = 0; i < r->input_count && status == WN_OK; i++)
    if (r->inputs[i].answers) status = answers_read(r->ctx, r->inputs[i].path, &files[n++]);
  if (status == WN_OK) status = answers_draw_curves(r, files, n);
  for (int i = 0; i < n && status == WN_OK; i++) status = answers_draw_needles(r, &files[i], i);
  wn_free(files);
  return status;
}

const struct wn_section wn_section_answers = {"answers", "Written answers", WN_NEEDS_ANSWERS, answers_draw};
