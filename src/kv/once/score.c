/* What several methods share (score.h). */
#include "kv/once/score.h"

#include <string.h>

enum { LANES = 8 }; /* sums and maxima that the compiler can keep in vector registers */

/* exp(x) for x <= 0 within 2 units of the last place, 0 below -708: 2^n exp(r), n the integer next to x / log 2, by
 * Taylor's polynomial of degree 13. No branch and no call, so that it is computed in vectors. */
static inline double softmax_exp(double x) {
  static const double of[] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
  const double round = 0x1.8p52, n = x * 0x1.71547652b82fep0 + round; /* n in the last bits */
  const double r = x - (n - round) * 0x1.62e42fefa38p-1 - (n - round) * 0x1.ef35793c7673p-45;
  double y = of[0], two;
  int64_t bits;
  for (size_t i = 1; i < sizeof of / sizeof *of; i++) y = y * r + of[i];
  memcpy(&bits, &n, sizeof bits);
  bits = (int64_t)((uint64_t)(bits + 1023) << 52);
  memcpy(&two, &bits, sizeof two);
  return x < -708 ? 0 : y * two;
}

WN_WIDE static void softmax(double *x, int64_t n) {
  double most[LANES], sum[LANES] = {0};
  const int64_t whole = n - n % LANES;
  for (int s = 0; s < LANES; s++) most[s] = -INFINITY;
  for (int64_t i = 0; i < whole; i += LANES)
    for (int s = 0; s < LANES; s++) most[s] = wn_larger(x[i + s], most[s]);
  for (int64_t i = whole; i < n; i++) most[0] = wn_larger(x[i], most[0]);
  for (int s = 1; s < LANES; s++) most[0] = wn_larger(most[s], most[0]);
  for (int64_t i = 0; i < n; i++) x[i] = softmax_exp(x[i] - most[0]);
  for (int64_t i = 0; i < whole; i += LANES)
    for (int s = 0; s < LANES; s++) sum[s] += x[i + s];
  for (int64_t i = whole; i < n; i++) sum[0] += x[i];
  for (int s = 1; s < LANES; s++) sum[0] += sum[s];
  for (int64_t i = 0; i < n; i++) x[i] /= sum[0];
}
void wn_once_softmax(double *x, int64_t n) {
  softmax(x, n);
}

void wn_once_pool(const double *x, int64_t n, int64_t r, wn_pool pool, double *out) {
  for (int64_t j = 0; j < n; j++) {
    double sum = 0, most = -INFINITY;
    for (int64_t i = j > r ? j - r : 0; i <= j + r && i < n; i++) sum += x[i], most = wn_larger(x[i], most);
    out[j] = pool == WN_POOL_MAX ? most : sum / (double)(2 * r + 1);
  }
}

void wn_once_standard(double *x, int64_t rows, int64_t n, int64_t ld) {
  const double count = (double)(rows * n);
  double mean = 0, square = 0;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < n; j++) mean += x[r * ld + j] / count;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < n; j++) square += (x[r * ld + j] - mean) * (x[r * ld + j] - mean);
  const double deviation = count > 1 ? sqrt(square / (count - 1)) : 0, least = 1e-6;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < n; j++) x[r * ld + j] = (x[r * ld + j] - mean) / fmax(deviation, least);
}

int64_t wn_once_before(const struct wn_once_view *view, int64_t rows) {
  int64_t m = view->n;
  while (m > 0 && view->at[m - 1] >= view->next - rows) m--;
  return m;
}

void wn_once_mark_recent(const struct wn_once_view *view, int64_t first, double *scores) {
  for (int64_t g = 0; g < view->Hkv; g++)
    for (int64_t j = first; j < view->n; j++) scores[g * view->n + j] = WN_ONCE_RECENT;
}

/* The weights of the window's row r in head h, over the tokens that it sees, to row [n]. Returns their number. */
WN_WIDE static int64_t window_row(const struct wn_once_view *v, int64_t r, int64_t h, double *row) {
  const float *q = v->q + (r * v->H + h) * v->D, *k = v->k + h / (v->H / v->Hkv) * v->n * v->D;
  int64_t seen = 0;
  for (; seen < v->n && v->at[seen] <= v->next - v->w + r; seen++)
    row[seen] = v->scale * wn_once_dot(q, k + seen * v->D, v->D);
  wn_once_softmax(row, seen);
  return seen;
}

struct once_heads {
  struct wn_once_head first;
  void (*fn)(const struct wn_once_head *);
  int64_t each;
};
static void once_head_run(void *args, int64_t g) {
  const struct once_heads *all = args;
  struct wn_once_head h = all->first;
  h.g = g, h.room += g * all->each;
  if (h.out) h.out += g * h.v->n;
  all->fn(&h);
}
void wn_once_heads(const struct wn_once_view *v, void (*fn)(const struct wn_once_head *), double *room, int64_t each,
                   double *out, const void *more) {
  const struct once_heads all = {{.v = v, .room = room, .out = out, .more = more}, fn, each};
  wn_parallel_tasks(v->threads, v->Hkv, once_head_run, &all);
}

struct window {
  int64_t used, m;
};
static void window_head(const struct wn_once_head *of) {
  const struct wn_once_view *v = of->v;
  const struct window *x = of->more;
  const int64_t group = v->H / v->Hkv;
  memset(of->out, 0, (size_t)x->m * sizeof *of->out);
  for (int64_t h = of->g * group; h < (of->g + 1) * group; h++)
    for (int64_t r = v->w - x->used; r < v->w; r++) {
      const int64_t seen = window_row(v, r, h, of->room);
      for (int64_t j = 0; j < x->m && j < seen; j++) of->out[j] += of->room[j];
    }
  for (int64_t j = 0; j < x->m; j++) of->out[j] /= (double)(group * x->used);
}

wn_status wn_once_window(wn_context *ctx, const struct wn_once_view *view, int64_t rows, int64_t m, double *attention) {
  const struct window of = {.used = rows < view->w ? rows : view->w, .m = m};
  void *memory;
  WN_TRY(wn_alloc(ctx, "attention of the last rows", (size_t)(view->Hkv * view->n) * sizeof(double), &memory));
  wn_once_heads(view, window_head, memory, view->n, attention, &of);
  wn_free(memory);
  return WN_OK;
}

double wn_once_frequency(const struct wn_rope *rope, int64_t i) {
  const int64_t R = rope->R ? rope->R : rope->D;
  return rope->frequencies ? rope->frequencies[i] : pow(rope->theta, -2.0 * (double)i / (double)R);
}

struct wn_once_pair wn_once_pair(const struct wn_rope *rope, int64_t i) {
  const int64_t R = rope->R ? rope->R : rope->D;
  return rope->adjacent ? (struct wn_once_pair){2 * i, 2 * i + 1} : (struct wn_once_pair){i, i + R / 2};
}

static void unrotate_row(void *args, int64_t j) {
  const struct wn_once_rows *rows = args;
  const struct wn_rope *rope = rows->rope;
  double *out = rows->out;
  const int64_t n = rows->n, D = rows->D, pairs = rope ? (rope->R ? rope->R : D) / 2 : 0;
  for (int64_t h = 0; h < rows->heads; h++)
    for (int64_t d = 0; d < D; d++) out[(h * n + j) * D + d] = (double)rows->x[j * rows->token + h * rows->head + d];
  for (int64_t i = 0; i < pairs; i++) {
    const struct wn_once_pair p = wn_once_pair(rope, i);
    const double angle = (double)rows->at[j] * wn_once_frequency(rope, i);
    const double size = rope->magnitude != 0 ? rope->magnitude : 1, c = cos(angle) / size, s = sin(angle) / size;
    for (int64_t h = 0; h < rows->heads; h++) {
      double *row = out + (h * n + j) * D;
      const double a = row[p.a], b = row[p.b];
      row[p.a] = a * c + b * s;
      row[p.b] = b * c - a * s;
    }
  }
}
void wn_once_unrotate(int threads, const struct wn_once_rows *rows) {
  wn_parallel_for(threads, rows->n, unrotate_row, rows);
}

void wn_once_plain_keys(const struct wn_once_view *view, int64_t first, int64_t count, double *out) {
  const struct wn_once_rows rows = {.x = view->k + first * view->D,
                                    .n = count,
                                    .heads = view->Hkv,
                                    .D = view->D,
                                    .token = view->D,
                                    .head = view->n * view->D,
                                    .at = view->at + first,
                                    .rope = view->rope,
                                    .out = out};
  wn_once_unrotate(view->threads, &rows);
}
