/* Errors of means over rows, and of savings (estimate.h, winnow/estimate.h). */
#include "base/estimate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/misuse.h"
#include "base/rng.h"

#define LEVEL 0.05 /* that an interval misses */

/* ---- Student's t ---- */

/* The continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method. */
static double beta_fraction(double a, double b, double x) {
  const double least = 1e-300;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  if (fabs(d) < least) d = least;
  d = 1 / d;
  double f = d;
  for (int m = 1; m < 10000; m++) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    double change = 1;
    for (int k = 0; k < 2; k++) {
      const double term = k ? odd : even;
      d = 1 + term * d, c = 1 + term / c;
      if (fabs(d) < least) d = least;
      if (fabs(c) < least) c = least;
      d = 1 / d;
      f *= change = c * d;
    }
    if (fabs(change - 1) < 1e-15) break;
  }
  return f;
}

/* I_x(a, b) */
static double beta_part(double a, double b, double x) {
  if (x <= 0 || x >= 1) return x >= 1;
  const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
  return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double wn_student_tail(double freedom, double t) {
  const double outside = beta_part(freedom / 2, 0.5, freedom / (freedom + t * t)); /* P(|T| > |t|) */
  return t > 0 ? outside / 2 : 1 - outside / 2;
}

double wn_student_t95(double freedom) {
  double low = 0, high = 1;
  if (!(freedom > 0)) return NAN;
  if (freedom > 1e6) freedom = 1e6; /* the normal distribution's, to 6 digits */
  const double half = freedom / 2;
  while (beta_part(half, 0.5, freedom / (freedom + high * high)) > LEVEL && high < 1e100) low = high, high *= 2;
  for (int i = 0; i < 100; i++) {
    const double middle = (low + high) / 2;
    if (beta_part(half, 0.5, freedom / (freedom + middle * middle)) > LEVEL)
      low = middle;
    else
      high = middle;
  }
  return (low + high) / 2;
}

/* ---- means ---- */

static double rows_weight(const struct wn_row_numbers *rows, int64_t i) {
  return rows->weight ? rows->weight[i * rows->stride] : 1;
}

/* Degrees of freedom of rows with these weights. */
static double rows_freedom(const struct wn_row_numbers *rows) {
  double squares = 0, fourths = 0;
  for (int64_t i = 0; i < rows->count; i++) {
    const double w = rows_weight(rows, i);
    squares += w * w, fourths += w * w * w * w;
  }
  return fourths > 0 ? squares * squares / fourths - 1 : 0;
}

wn_estimate wn_estimate_ratio(const struct wn_row_numbers *rows) {
  wn_estimate e = wn_estimate_unknown;
  double sum = 0, weight = 0, squares = 0;
  for (int64_t i = 0; i < rows->count; i++) {
    const double w = rows_weight(rows, i);
    if (!(w > 0)) continue;
    sum += rows->sum[i * rows->stride] - (rows->minus ? rows->minus[i * rows->stride] : 0);
    weight += w;
    e.rows++;
  }
  e.value = weight > 0 ? sum / weight : 0;
  if (e.rows < 2) return e;
  for (int64_t i = 0; i < rows->count; i++) {
    const double w = rows_weight(rows, i);
    if (!(w > 0)) continue;
    const double y = rows->sum[i * rows->stride] - (rows->minus ? rows->minus[i * rows->stride] : 0);
    const double residual = (y - e.value * w) / (1 - w / weight);
    squares += residual * residual;
  }
  const double n = (double)e.rows, freedom = rows_freedom(rows);
  e.error = sqrt((n - 1) / n * squares) / weight;
  const double reach = e.error * wn_student_t95(fmax(freedom, 1e-3));
  e.low = e.value - reach, e.high = e.value + reach;
  return e;
}

enum { SUMS = sizeof(wn_row_sums) / sizeof(double) };

void wn_rows_loss(const wn_row_sums *rows, int64_t count, wn_estimate *out) {
  WN_CHECK_OR(, WN_ARRAY(rows, count), WN_POINTER(out));
  *out = wn_estimate_ratio(&(struct wn_row_numbers){&rows->loss, NULL, &rows->tokens, count, SUMS});
}

void wn_rows_accuracy(const wn_row_sums *rows, int64_t count, wn_estimate *out) {
  WN_CHECK_OR(, WN_ARRAY(rows, count), WN_POINTER(out));
  *out = wn_estimate_ratio(&(struct wn_row_numbers){&rows->hits, NULL, &rows->tokens, count, SUMS});
}

wn_status wn_rows_difference(const wn_row_sums *rows, const wn_row_sums *base, int64_t count, wn_estimate *out) {
  WN_CHECK_OR(WN_ERR_ARGUMENT, WN_ARRAY(rows, count), WN_ARRAY(base, count), WN_POINTER(out));
  *out = wn_estimate_unknown;
  for (int64_t i = 0; i < count; i++)
    if (rows[i].tokens != base[i].tokens) return WN_ERR_ARGUMENT;
  *out = wn_estimate_ratio(&(struct wn_row_numbers){&rows->loss, &base->loss, &rows->tokens, count, SUMS});
  return WN_OK;
}

wn_verdict wn_estimate_verdict(const wn_estimate *difference, double margin) {
  WN_CHECK_OR(WN_VERDICT_OPEN, WN_POINTER(difference));
  const double low = difference->low, high = difference->high;
  if (low >= -margin && high <= margin) return WN_VERDICT_EQUAL;
  return low > 0 ? WN_VERDICT_HIGHER : high < 0 ? WN_VERDICT_LOWER : WN_VERDICT_OPEN; /* NAN: open */
}

const char *wn_verdict_name(wn_verdict verdict) {
  static const char *const names[] = {"open", "equal", "lower", "higher"};
  return (int)verdict >= 0 && verdict <= WN_VERDICT_HIGHER ? names[verdict] : "?";
}

/* ---- JSON ---- */

enum { ENDS = 3 };
static const char *const ends[ENDS] = {"stderr", "low", "high"};

bool wn_estimate_set(json_t *object, const char *name, const wn_estimate *e) {
  const double numbers[ENDS] = {e->error, e->low, e->high};
  bool ok = true;
  for (int i = 0; i < ENDS && ok; i++) {
    char key[64];
    snprintf(key, sizeof key, "%s_%s", name, ends[i]);
    ok = !json_object_set_new(object, key, isfinite(numbers[i]) ? json_real(numbers[i]) : json_null());
  }
  return ok;
}

void wn_estimate_get(const json_t *object, const char *name, wn_estimate *e) {
  double *const numbers[ENDS] = {&e->error, &e->low, &e->high};
  if (json_is_number(json_object_get(object, name))) e->value = json_number_value(json_object_get(object, name));
  for (int i = 0; i < ENDS; i++) {
    char key[64];
    snprintf(key, sizeof key, "%s_%s", name, ends[i]);
    const json_t *value = json_object_get(object, key);
    *numbers[i] = json_is_number(value) ? json_number_value(value) : NAN;
  }
}

/* ---- savings ---- */

void wn_saving_init(struct wn_saving *s) {
  *s = (struct wn_saving){.freedom = -1};
  for (int i = 0; i <= WN_SAMPLES; i++) s->found[i] = NAN;
}

/* The loss of a sample above the target, per position. Sample WN_SAMPLES has every row once. */
static double saving_gap(int sample, const double *excess, const double *weight, int64_t rows) {
  double sum = 0, counted = 0;
  uint32_t drawn[4] = {0};
  for (int64_t k = 0; k < rows; k++) {
    if (sample < WN_SAMPLES && k % 4 == 0)
      wn_philox(wn_random_key(0, WN_STREAM_SAMPLE_ROWS), (uint64_t)sample, (uint64_t)k, drawn);
    const int64_t i = sample < WN_SAMPLES ? (int64_t)((uint64_t)drawn[k % 4] * (uint64_t)rows >> 32) : k;
    sum += excess[i];
    counted += weight[i];
  }
  return counted > 0 ? sum / counted : 0;
}

void wn_saving_add(struct wn_saving *s, double whole, double total, const double *excess, const double *weight,
                   int64_t rows) {
  const bool first = s->freedom < 0;
  if (first) s->freedom = fmax(rows_freedom(&(struct wn_row_numbers){.weight = weight, .count = rows, .stride = 1}), 0);
  for (int i = 0; i <= WN_SAMPLES; i++) {
    if (!isnan(s->found[i])) continue;
    const double gap = saving_gap(i, excess, weight, rows), before = s->gap[i];
    if (gap > 0) {
      const double part = first ? 1 : before / (before - gap); /* of the way from the last point */
      s->found[i] = first ? whole / total : whole / exp(log(s->total) + part * (log(total) - log(s->total)));
    } else {
      s->gap[i] = gap;
    }
  }
  s->total = total;
}

static int saving_compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

wn_estimate wn_saving_end(const struct wn_saving *s, double last, double *open) {
  double sorted[WN_SAMPLES], sum = 0, squares = 0;
  int without = 0;
  for (int i = 0; i < WN_SAMPLES; i++) {
    without += isnan(s->found[i]);
    sorted[i] = isnan(s->found[i]) ? last : s->found[i];
    sum += sorted[i];
  }
  for (int i = 0; i < WN_SAMPLES; i++) squares += (sorted[i] - sum / WN_SAMPLES) * (sorted[i] - sum / WN_SAMPLES);
  qsort(sorted, WN_SAMPLES, sizeof *sorted, saving_compare);
  if (open) *open = (double)without / WN_SAMPLES;
  const double all = s->found[WN_SAMPLES], value = isnan(all) ? last : all;
  if (!(s->freedom > 0)) return (wn_estimate){.value = value, .error = NAN, .low = NAN, .high = NAN};
  const double wider = sqrt((s->freedom + 1) / s->freedom);
  const double tail = erfc(wider * wn_student_t95(s->freedom) / sqrt(2)) / 2;
  const int at = (int)(tail * WN_SAMPLES);
  return (wn_estimate){.value = value,
                       .error = wider * sqrt(squares / (WN_SAMPLES - 1)),
                       .low = sorted[at],
                       .high = sorted[WN_SAMPLES - 1 - at]};
}
