/* Budgets: those in force by layer and key-value head, and what each policy holds under them, as measured by winnow
 * analyze survival. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/misuse.h"
#include "base/number.h"
#include "kv/budgets.h"
#include "report/section.h"

/* "24 tokens in every layer", "8 to 96 tokens by layer", "16 to 64 tokens by key-value head". */
static void budgets_tell(const wn_budgets *b, char *out, size_t bytes) {
  const int64_t n = b->heads > 0 ? b->layers * b->heads : b->layers;
  const int64_t *tokens = b->heads > 0 ? b->head_tokens : b->tokens;
  int64_t least = tokens[0], most = tokens[0];
  for (int64_t i = 1; i < n; i++) {
    if (tokens[i] < least) least = tokens[i];
    if (tokens[i] > most) most = tokens[i];
  }
  if (least == most)
    snprintf(out, bytes, "%lld tokens in every layer", (long long)least);
  else
    snprintf(out, bytes, "%lld to %lld tokens by %s", (long long)least, (long long)most,
             b->heads > 0 ? "key-value head" : "layer");
}

static bool budgets_are_equal(const wn_budgets *b) {
  bool equal = true;
  for (int64_t l = 0; l < b->layers; l++) {
    equal &= b->tokens[l] == b->tokens[0];
    for (int64_t h = 0; h < b->heads; h++) equal &= wn_budgets_of(b, l, h) == b->tokens[0];
  }
  return equal;
}

static void budgets_draw_heads(struct wn_drawing *d, const wn_budgets *b) {
  const int64_t n = b->layers * b->heads;
  double *m = wn_drawing_line(d, n, 0, 0, "key-value heads");
  double *mean = m ? wn_drawing_line(d, b->layers, 1, 0, "mean of the layer") : NULL;
  if (!mean) return;
  d->series[0].points = true;
  for (int64_t l = 0; l < b->layers; l++) {
    mean[l] = (double)l;
    mean[b->layers + l] = NAN; /* a layer has no x on the axis of heads */
    for (int64_t h = 0; h < b->heads; h++) {
      const int64_t i = l * b->heads + h;
      m[i] = (double)l;
      m[n + i] = (double)h;
      m[3 * n + i] = (double)b->head_tokens[i];
      mean[3 * b->layers + l] += (double)b->head_tokens[i] / (double)b->heads;
    }
  }
}

/* Draws budgets that differ between layers or heads; a single number is not drawn. */
static wn_status budgets_draw_in_force(struct wn_report *r, const struct wn_report_input *in, int number) {
  const wn_budgets *b = &in->budgets;
  struct wn_drawing d;
  char what[100];
  if (budgets_are_equal(b)) return WN_OK;
  wn_drawing_begin(&d, r->ctx, "in-force", number, "Budgets in force", in->name);
  budgets_tell(b, what, sizeof what);
  wn_print(d.about, sizeof d.about, "Tokens that %s may hold while the text is read, policy %s: %s, %.4g on average.",
           b->heads > 0 ? "each key-value head" : "each layer", wn_policy_name(b->policy), what, wn_budgets_mean(b));
  d.figure.axes = b->heads > 0 ? 2 : 1;
  d.figure.x[0].label = "layer";
  d.figure.x[1].label = "head";
  d.figure.y.label = "tokens";
  d.figure.bars = b->heads == 0;
  if (b->heads > 0) {
    budgets_draw_heads(&d, b);
  } else {
    double *m = wn_drawing_line(&d, b->layers, 0, 0, "layers");
    for (int64_t l = 0; m && l < b->layers; l++) {
      m[l] = (double)l;
      m[3 * b->layers + l] = (double)b->tokens[l];
    }
  }
  return wn_report_add(r, &d);
}

/* ---- survival ---- */

/* The share of tokens still held against their age, one line per policy. */
static void budgets_draw_ages(struct wn_drawing *d, wn_context *ctx, const wn_survival_report *s, const char *name,
                              int number) {
  wn_drawing_begin(d, ctx, "survival", number, "Survival of tokens under each policy", name);
  d->figure.axes = 1;
  d->figure.x[0] = (wn_figure_axis){"rows after the token's own", true};
  d->figure.y.label = "share still held";
  for (int i = 0; i < s->count; i++) {
    const wn_survival_policy *p = &s->policy[i];
    int64_t n = 0;
    while (n < WN_SURVIVAL_AGES && p->alive[n] >= 0) n++;
    double *m = wn_drawing_line(d, n, (int)p->policy, 0, wn_policy_name(p->policy));
    for (int64_t k = 0; m && k < n; k++) {
      m[k] = ldexp(1, (int)k);
      m[3 * n + k] = p->alive[k];
    }
  }
}

/* A table with a row for each policy, after a row for the same tokens without a budget. */
static wn_status budgets_draw_policies(struct wn_report *r, const wn_survival_report *s,
                                       const wn_survival_policy *whole, const char *name, const char *what,
                                       int number) {
  enum { COLUMNS = 4 };
  static const char *const head[COLUMNS] = {"policy", "perplexity", "lifetime, rows", "evicted, %"};
  struct wn_drawing d;
  wn_drawing_begin(&d, r->ctx, "policies", number, "Policies under these budgets", name);
  for (int i = 0; i <= s->count; i++) {
    const wn_survival_policy *p = i == 0 ? whole : &s->policy[i - 1];
    wn_drawing_cell(&d, "%s", i == 0 ? "no budget" : wn_policy_name(p->policy));
    wn_drawing_cell(&d, "%.6g", p->perplexity);
    wn_drawing_cell(&d, "%.4g", p->lifetime);
    wn_drawing_cell(&d, "%.1f", 100 * p->evicted);
  }
  snprintf(d.about, sizeof d.about,
           "Under budgets of %s: perplexity of the same tokens; the mean number of rows that see a token, its own "
           "first; the share of tokens evicted before the end.",
           what);
  return wn_report_add_table(r, &d, head, COLUMNS);
}

/* Of the tokens that a policy (row) holds at the end, the share that another (column) holds too. */
static wn_status budgets_draw_agreement(struct wn_report *r, const wn_survival_report *s, const char *name,
                                        const char *what, int number) {
  const char *head[1 + WN_POLICY_MAX] = {"%"};
  struct wn_drawing d;
  wn_drawing_begin(&d, r->ctx, "agreement", number, "Agreement of policies", name);
  for (int i = 0; i < s->count; i++) {
    head[1 + i] = wn_policy_name(s->policy[i].policy);
    wn_drawing_cell(&d, "%s", head[1 + i]);
    for (int j = 0; j < s->count; j++) wn_drawing_cell(&d, "%.1f", 100 * s->overlap[i * s->count + j]);
  }
  snprintf(d.about, sizeof d.about,
           "Under budgets of %s: of the tokens that the row's policy holds at the end of a sequence, the share in per "
           "cent that the column's policy holds too.",
           what);
  return wn_report_add_table(r, &d, head, 1 + s->count);
}

static wn_status budgets_draw_survival(struct wn_report *r, const struct wn_report_input *in,
                                       const wn_survival_report *s, const wn_survival_policy *whole, const char *from,
                                       const char *left_out, int number) {
  const wn_model_config *c = wn_model_config_get(in->loaded);
  struct wn_drawing d;
  char what[100];
  budgets_tell(&in->budgets, what, sizeof what);
  budgets_draw_ages(&d, r->ctx, s, in->name, number);
  snprintf(d.about, sizeof d.about,
           "The share of tokens still held 1, 2, 4, ... rows after their own under budgets of %s, of those whose text "
           "is that long; %llu tokens of %s, in every layer and key-value head.%s%s%s",
           what, (unsigned long long)(s->policy[0].tokens / (uint64_t)(c->layers * c->kv_heads)), from,
           *left_out ? " Not shown, because the budgets do not support them: " : "", left_out, *left_out ? "." : "");
  WN_TRY(wn_report_add(r, &d));
  WN_TRY(budgets_draw_policies(r, s, whole, in->name, what, number));
  return s->count > 1 ? budgets_draw_agreement(r, s, in->name, what, number) : WN_OK;
}

/* The input's budgets under another policy, with that policy's options. False: the budgets do not suit it, and the
 * context's error says why. */
static bool budgets_under(const struct wn_report *r, const struct wn_report_input *in, wn_policy policy,
                          wn_budgets *out) {
  const wn_model_config *c = wn_model_config_get(in->loaded);
  *out = in->budgets;
  if (wn_budgets_move(r->ctx, c, policy, out) == WN_OK) return true;
  out->per_kv_head = out->heads > 0; /* heads with budgets of their own evict on their own */
  return wn_budgets_check(r->ctx, out, c) == WN_OK;
}

static bool budgets_asks_for(const wn_report_options *o, wn_policy policy) {
  bool asked = o->policy_count < 0;
  for (int i = 0; i < o->policy_count; i++) asked |= o->policies[i] == policy;
  return asked;
}

/* Measures the same tokens without evictions. */
static wn_status budgets_measure_whole(struct wn_report *r, const struct wn_report_input *in,
                                       wn_survival_report **out) {
  const wn_model_config *c = wn_model_config_get(in->loaded);
  wn_budgets whole;
  const char *from;
  wn_budgets_init(&whole, NULL);
  WN_TRY(wn_policy_find(r->ctx, "window", &whole.policy));
  WN_TRY(WN_ALLOC(r->ctx, "budgets", c->layers, &whole.tokens));
  whole.layers = c->layers;
  for (int64_t l = 0; l < c->layers; l++) whole.tokens[l] = c->context;
  const wn_status status = wn_measure_survival(r, in, (const wn_budgets *const[]){&whole}, 1, out, &from);
  wn_budgets_clear(&whole);
  return status;
}

static wn_status budgets_add_survival(struct wn_report *r, const struct wn_report_input *in, int number) {
  wn_budgets budgets[WN_POLICY_MAX];
  const wn_budgets *list[WN_POLICY_MAX];
  char left_out[200] = "";
  const char *from;
  const bool all = r->options->policy_count < 0;
  int count = 0;
  for (int p = 0; p < wn_policy_count(); p++) {
    const char *name = wn_policy_name(p);
    if (!budgets_asks_for(r->options, p)) continue;
    if (budgets_under(r, in, p, &budgets[count])) {
      list[count] = &budgets[count];
      count++;
      continue;
    }
    if (!all) return wn_fail_prefix(r->ctx, WN_ERR_CONFIG, "%s: survival under %s", in->path, name);
    if (!wn_policy_suits(p, &wn_model_config_get(in->loaded)->attention)) continue;
    const size_t n = strlen(left_out);
    snprintf(left_out + n, sizeof left_out - n, "%s%s", n ? ", " : "", name);
  }
  if (count == 0) return WN_OK;
  wn_survival_report *s;
  WN_TRY(wn_measure_survival(r, in, list, count, &s, &from));
  wn_survival_report *whole = NULL;
  wn_status status = s ? budgets_measure_whole(r, in, &whole) : WN_OK;
  if (status == WN_OK && whole) status = budgets_draw_survival(r, in, s, &whole->policy[0], from, left_out, number);
  wn_survival_report_destroy(whole);
  wn_survival_report_destroy(s);
  return status;
}

static wn_status budgets_draw(struct wn_report *r) {
  int models = 0;
  for (int i = 0; i < r->input_count; i++) {
    const struct wn_report_input *in = &r->inputs[i];
    if (in->budgets.layers == 0) continue;
    WN_TRY(budgets_draw_in_force(r, in, models));
    WN_TRY(budgets_add_survival(r, in, models++));
  }
  return WN_OK;
}

wn_status wn_survival_save_svg(wn_context *ctx, const wn_survival_report *report, const char *title, const char *path) {
  WN_CHECK_CALL(WN_POINTER(report), WN_POINTER(path));
  struct wn_drawing d;
  budgets_draw_ages(&d, ctx, report, NULL, -1);
  return wn_drawing_save_svg(&d, title, path);
}

const struct wn_section wn_section_budgets = {
    .name = "budgets", .title = "What budgets keep", .needs = WN_NEEDS_MODELS | WN_NEEDS_BUDGETS, .draw = budgets_draw};
