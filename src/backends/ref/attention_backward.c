/* Attention row by row, backward. Each sequence goes through its rows from last to first. F of a row is recomputed: the
 * carry is saved every ROWS rows and replayed within the block, so F is bitwise forward's. dF has a carry too, summed
 * from the last row on. The same function as in forward recomputes a row's attention weights. Nothing of size T x T is
 * kept: the scratch is G (T*T/ROWS + ROWS*T) doubles per thread. */
#include "backends/ref/attention_rows.inc"
#ifndef REAL

#define ROWS 32

/* How many distances have a sum of gradients of logits: none, if no bias has parameters. */
static int64_t distances_of(const struct wn_attention *a) {
  const struct wn_interval all = wn_score_distances(a);
  return wn_score_learns(a) ? all.last + 1 - all.first : 0;
}
/* Doubles of the arrays that all sequences add to: dp, dsink_k, dsink_v, dz, dgate, by_distance, dstrength. */
static size_t shared_doubles(const struct wn_attention *a) {
  return (size_t)(a->relative.P * a->D + 2 * a->Hkv * a->sinks.n * a->D + (2 + distances_of(a)) * a->H +
                  wn_selection_groups(a));
}

static size_t keyed_doubles(const struct wn_attention *a) {
  return wn_score_keyed(a) > 0 ? (size_t)(a->maps * a->Tk * a->H) : 0;
}

size_t wn_ref_attention_backward_doubles(const struct wn_attention *a) {
  const size_t T = (size_t)a->Tk, D = (size_t)a->D, G = (size_t)wn_selection_groups(a);
  const size_t blocks = ((size_t)a->Tq + ROWS - 1) / ROWS;
  if (a->sel.on && a->open) /* F, base, sums of S and of dF; dF of one row; dq, dsq; dk, dv, dsk; y, dy, ungated */
    return 5 * G * T + (size_t)a->Tq * ((size_t)a->H + G) * D + T * (2 * (size_t)a->Hkv + G) * D + 3 * D +
           row_doubles(a) + shared_doubles(a);
  return G * (blocks * T + 2 * ROWS * T) /* carries; F and base of one block */
         + 2 * T * (size_t)a->Hkv * D    /* dk, dv */
         + G * T * D + (size_t)a->H * D  /* dsk; dq of one row */
         + G * D + 3 * D                 /* dsq of one row; y, dy and ungated of one head's row */
         + 2 * G * T                     /* dF and dS of one row */
         + keyed_doubles(a)              /* dkeys */
         + row_doubles(a) + shared_doubles(a);
}

#define REAL_FILE "backends/ref/attention_backward.c"
#include "backends/ref/twice.h"

static wn_status backward_wide(const struct wn_exec *exec, const struct wn_attention *a) {
  return exec->dtype == WN_F64 ? attention_backward_f64(exec, a) : attention_backward_f32(exec, a);
}
wn_status wn_ref_attention_backward(const struct wn_exec *exec, const struct wn_attention *a) {
  return wn_wide_rows_run(exec, a, true, backward_wide);
}
#else

/* A thread's sums over its sequences, and its parts of scratch. */
struct NAME(sums) {
  double *dk, *dv, *dsk;          /* [Tk,Hkv,D], [Tk,G,D] of one sequence */
  double *dq, *dsq;               /* [H,D], [G,D] of one row */
  double *dp, *dsink_k, *dsink_v; /* [P,D], [Hkv,n,D] */
  double *dz, *dgate;             /* [H] */
  double *by_distance;            /* [H,distances] of gradients of logits */
  double *dkeys;                  /* [maps,H/Hkv,Tk,Hkv] of one sequence: the numbers of the keys; or NULL */
  double *dstrength;              /* [G] */
  double *weight, *dweight, *y, *dy, *ungated;
};

/* Adds the gradient of a logit of head h at distance x to what the biases' parameters get. */
static inline void NAME(distance_gradient)(const struct wn_attention *a, int64_t h, int64_t x, double G,
                                           const struct NAME(sums) * s) {
  if (wn_score_learns(a)) s->by_distance[h * distances_of(a) + x - wn_score_distances(a).first] += G;
}

/* From the gradient of a mapped logit to that of the logit; adds to what the keys' numbers get. */
static inline double NAME(logit_back)(const struct wn_attention *a, struct wn_score_place at, double y, double G,
                                      const struct NAME(sums) * s) {
  const struct wn_score_back to = wn_score_logit_back(a, REAL_IS_DOUBLE, at, y, G);
  const int64_t share = a->H / a->Hkv;
  for (int64_t i = 0; i < a->maps; i++) {
    double *numbers = s->dkeys + (i * share + wn_score_gate(&a->map[i], at.h, share)) * a->Tk * a->Hkv + at.h / share;
    if (!a->map[i].kind->keyed_double) continue;
    numbers[at.j * a->Hkv] += to.key[i];
    numbers[at.own * a->Hkv] += to.row[i];
  }
  return to.G;
}

/* Adds to dg for one head's row; `ungated` is its output before the gates. dy becomes the gradient of that output. */
static void NAME(gate_backward)(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, const double *ungated,
                                double *dy) {
  REAL *dg = a->gate.dg ? (REAL *)a->gate.dg + b * a->gate.s_g.b + r * a->gate.s_g.t + h * a->gate.s_g.h : NULL;
  double sum = 0;
  for (int64_t d = 0; d < a->D; d++) {
    sum += dy[d] * ungated[d];
    if (dg && a->gate.elementwise) dg[d] = (REAL)(dy[d] * ungated[d]);
    dy[d] *= NAME(gate)(a, b, r, h, d);
  }
  if (dg && !a->gate.elementwise) dg[0] = (REAL)sum;
}

/* Goes back in s->dy through what follows the weighted sum of values in one head's row: gates, then exclusive
 * attention. */
static void NAME(output_backward)(const struct wn_attention *a, int64_t b, int64_t h, int64_t r,
                                  const struct NAME(sums) * s) {
  const int64_t g = h / (a->H / a->Hkv), D = a->D, position = position_of(a, r);
  double *dy = s->dy;
  if (a->gate.on || a->exclusive.on) NAME(mix)(a, b, h, r, s->weight, s->y);
  if (a->gate.on && !a->exclusive.on) NAME(gate_backward)(a, b, h, r, s->y, dy);
  if (!a->exclusive.on) return;
  const REAL *v = NAME(v_at)(a, b, position, g);
  const double norm = NAME(dot)(v, v, D), size = fmax(norm, 1e-30);
  const double gate = a->exclusive.gate ? (double)((const REAL *)a->exclusive.gate)[h] : 1;
  double along = 0, d_along = 0, *dv = s->dv + (position * a->Hkv + g) * D;
  for (int64_t d = 0; d < D; d++) along += s->y[d] * (double)v[d];
  if (a->gate.on) { /* the gates' input is y without its part along v */
    for (int64_t d = 0; d < D; d++) s->ungated[d] = s->y[d] - gate * along / size * (double)v[d];
    NAME(gate_backward)(a, b, h, r, s->ungated, dy);
  }
  for (int64_t d = 0; d < D; d++) d_along += dy[d] * (double)v[d];
  for (int64_t d = 0; d < D; d++) {
    const double dz = dy[d];
    dy[d] -= gate * d_along / size * (double)v[d];
    dv[d] -= gate * (d_along * s->y[d] + along * dz) / size;
    if (norm > 1e-30) dv[d] += 2 * gate * along * d_along / (size * size) * (double)v[d];
  }
  s->dgate[h] -= along * d_along / size;
}

/* The share of dz, without limit/ramp, of the key at the ramp's end that counts (ops/attention.h). dy is that of the
 * weighted sum of values. */
static double NAME(edge_gradient)(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, int64_t x,
                                  const double *F, const double *weight, const double *dy, double lse, double mean) {
  const int64_t g = h / (a->H / a->Hkv), position = position_of(a, r), j = position - x;
  if (x < 0 || j < document_start(a, b, position) || !wn_distance_seen(a, x) || is_evicted(a, b, g, j, position))
    return 0;
  if (!(lse > -INFINITY) || (a->threshold.on && !(weight[j] > 0) && !wn_keeps_weightless(a, b, g, j))) return 0;
  const REAL *v = NAME(v_at)(a, b, j, g);
  double dw = 0;
  for (int64_t d = 0; d < a->D; d++) dw += dy[d] * (double)v[d];
  const struct wn_score_place at = {b, h, position, j, x};
  const double logit = NAME(logit)(a, at, NAME(q_at)(a, b, r, h), NAME(k_at)(a, b, j, g)) - (F ? F[j] : 0.0);
  return exp(fmin(logit - lse, WN_SPAN_EXPONENT)) * (dw * kept_factor(a, b, h, r, j) - mean);
}

/* Adds this head's share -G to dF of row r, and its shares to dq (of one head), dk, dv and the mechanisms' arrays. */
static void NAME(attention_backward_head)(const struct wn_attention *a, int64_t b, int64_t h, int64_t r,
                                          const double *F, double *dF, const struct NAME(sums) * s) {
  const int64_t g = h / (a->H / a->Hkv), D = a->D, n = a->sinks.n;
  const int64_t position = position_of(a, r), first = document_start(a, b, position), last = last_key(a, b, position);
  const REAL *q = NAME(q_at)(a, b, r, h), *given = (const REAL *)a->dy + b * a->s_y.b + r * a->s_y.t + h * a->s_y.h;
  const double z = a->span.on ? NAME(ratio)(a, b, h, r) : 0;
  const int64_t edge = a->span.on ? wn_span_edge(a, z) : -1;
  double *dq = s->dq + h * D, *dy = s->dy, mean = 0, dz = 0;
  const double lse = NAME(weights)(a, b, h, r, F, s->weight, s->weight + 2 * (n + a->Tk), NULL, NULL);
  for (int64_t d = 0; d < D; d++) dy[d] = (double)given[d];
  if (a->gate.on || a->exclusive.on) NAME(output_backward)(a, b, h, r, s);
  const REAL *sink_k = a->sinks.k, *sink_v = a->sinks.v;
  for (int64_t i = 0; i < n; i++) {
    s->dweight[i] = 0;
    for (int64_t d = 0; d < D; d++) s->dweight[i] += dy[d] * (double)sink_v[(g * n + i) * D + d];
    mean += s->weight[i] * s->dweight[i];
  }
  for (int64_t j = first; j <= last; j++) {
    const double w = s->weight[n + j];
    if (w == 0) continue;
    const double factor = kept_factor(a, b, h, r, j), kept = WN_REF_OPERAND(w * factor);
    const REAL *v = NAME(v_at)(a, b, j, g);
    double dw = 0, *dv = s->dv + (j * a->Hkv + g) * D;
    for (int64_t d = 0; d < D; d++) {
      dw += dy[d] * (double)v[d];
      dv[d] += kept * dy[d];
    }
    s->dweight[n + j] = dw * factor;
    mean += w * s->dweight[n + j];
  }
  mean = WN_REF_DELTA(a, b, h, r, dy, mean);
  for (int64_t i = 0; i < n; i++) {
    const double G = a->scale * s->weight[i] * (s->dweight[i] - mean);
    for (int64_t d = 0; d < D; d++) {
      const int64_t at = (g * n + i) * D + d;
      dq[d] += G * (double)sink_k[at];
      s->dsink_k[at] += G * (double)q[d];
      s->dsink_v[at] += s->weight[i] * dy[d];
    }
  }
  for (int64_t j = first; j <= last; j++) {
    const double w = s->weight[n + j];
    if (w == 0) continue;
    const int64_t x = position - j;
    const double dA = w * (s->dweight[n + j] - mean);
    const REAL *k = NAME(k_at)(a, b, j, g);
    const REAL *p = a->relative.P > 0 && x < a->relative.P ? (const REAL *)a->relative.p + x * D : NULL;
    if (dF) dF[j] -= dA;
    const struct wn_score_place at = {b, h, position, j, x};
    const double G =
        a->maps > 0 ? NAME(logit_back)(a, at, wn_score_bends(a) ? NAME(logit)(a, at, q, k) : 0, dA, s) : dA;
    NAME(distance_gradient)(a, h, x, G, s);
    const double operand = a->scale * WN_REF_OPERAND(G);
    for (int64_t d = 0; d < D; d++) {
      dq[d] += operand * ((double)k[d] + (p ? (double)p[d] : 0.0));
      s->dk[(j * a->Hkv + g) * D + d] += operand * (double)q[d];
      if (p) s->dp[x * D + d] += operand * (double)q[d];
    }
    if (a->span.on) {
      const double m = span_mask(a, z, x);
      if (m < 1 && x != edge) dz += dA / m; /* m > 0: the key is seen */
    }
  }
  if (a->span.on)
    dz = (dz + NAME(edge_gradient)(a, b, h, r, edge, F, s->weight + n, dy, lse, mean)) * a->span.limit / a->span.ramp;
  dz = WN_SPAN_CUT(dz, WN_SPAN_STEEPEST);
  if (a->span.on && a->span.dynamic && a->span.dz)
    ((REAL *)a->span.dz)[b * a->span.s_z.b + r * a->span.s_z.t + h * a->span.s_z.h] = (REAL)dz;
  if (a->span.on && !a->span.dynamic) s->dz[h] += dz;
}

/* The gradient of row r's selections: dS[j], the sum of dF over the rows that see them (or a part of it), is passed on
 * to what the row selected with. */
static void NAME(backward_select)(const struct wn_attention *a, int64_t b, int64_t group, int64_t r, const double *base,
                                  const double *dS, const struct NAME(sums) * s) {
  const int64_t D = a->D, position = position_of(a, r), first = document_start(a, b, position),
                last = last_key(a, b, position), G = wn_selection_groups(a);
  const int64_t h = selecting_head(a, group), g = h / (a->H / a->Hkv);
  const bool own = a->sel.bilinear;
  const double strength = NAME(strength)(a, group);
  const REAL *q = own ? (const REAL *)a->sel.sq + b * a->sel.s_sq.b + r * a->sel.s_sq.t + group * a->sel.s_sq.h
                      : NAME(q_at)(a, b, r, h);
  double *to_q = own ? s->dsq + group * D : s->dq + h * D;
  for (int64_t j = first; j <= last; j++) {
    if (!may_select(a, position, j, first, last, NULL) || (a->sel.relu && !(base[j] > 0))) continue;
    const int64_t x = position - j;
    const double dy = strength * dS[j];
    const double dL = own ? dy : NAME(logit_back)(a, (struct wn_score_place){b, h, position, j, x}, base[j], dy, s);
    s->dstrength[group] += dS[j] * base[j];
    const REAL *k = own ? (const REAL *)a->sel.sk + b * a->sel.s_sk.b + j * a->sel.s_sk.t + group * a->sel.s_sk.h
                        : NAME(k_at)(a, b, j, g);
    const bool relative = !own && a->relative.P > 0 && x < a->relative.P;
    const REAL *p = relative ? (const REAL *)a->relative.p + x * D : NULL;
    if (!own) NAME(distance_gradient)(a, h, x, dL, s);
    double *to_k = own ? s->dsk + (j * G + group) * D : s->dk + (j * a->Hkv + g) * D;
    const double operand = a->scale * WN_REF_OPERAND(dL);
    for (int64_t d = 0; d < D; d++) {
      to_q[d] += operand * ((double)k[d] + (p ? (double)p[d] : 0.0));
      to_k[d] += operand * (double)q[d];
      if (p) s->dp[x * D + d] += operand * (double)q[d];
    }
  }
}

/* The gradient of M of a row. */
static double NAME(gradient_of_M)(const struct wn_attention *a, int64_t b, int64_t group, int64_t r) {
  if (!a->sel.mem || !a->sel.dM) return 0;
  return (double)((const REAL *)a->sel.dM)[(b * wn_selection_groups(a) + group) * a->Tq + r];
}

static void NAME(attention_store)(void *to, struct wn_stride stride, int64_t b, int64_t from, int64_t T, int64_t heads,
                                  int64_t D, const double *x) {
  if (!to) return;
  for (int64_t t = from; t < T; t++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t d = 0; d < D; d++)
        ((REAL *)to)[b * stride.b + t * stride.t + h * stride.h + d] = (REAL)x[(t * heads + h) * D + d];
}

/* Stores the gradients of the keys' numbers of sequence b: [maps,H/Hkv,Tk,Hkv]. */
static void NAME(store_numbers)(const struct wn_attention *a, int64_t b, const double *dkeys) {
  const int64_t each = a->Tk * a->Hkv, share = a->H / a->Hkv;
  for (int64_t i = 0; i < a->maps; i++)
    for (int64_t r = 0; r < a->map[i].gates && a->map[i].dkey; r++) NAME(attention_store)
  ((REAL *)a->map[i].dkey + r * a->map[i].s_gate, a->map[i].s_key, b, a->dk_from, a->Tk, a->Hkv, 1,
   dkeys + (i * share + r) * each);
}

/* Open rows: F is the sum of S over the other rows, so dS[k,j] is the sum of dF[i,j] over i != k. The sum over all rows
 * is known only after all rows; -dF[k,j] is passed on at row k itself. */
static void NAME(backward_open_selection)(const struct wn_attention *a, int64_t b, double *scratch,
                                          const struct NAME(sums) * shared) {
  const int64_t T = a->Tk, D = a->D, H = a->H, Hkv = a->Hkv, G = wn_selection_groups(a);
  struct NAME(sums) s = *shared;
  double *F = scratch, *base = F + G * T, *sums = base + G * T; /* [G,T] each */
  double *all = sums + G * T, *dF = all + G * T;                /* [G,T]: the sum of dF over all rows; dF of one row */
  double *dq = dF + G * T, *dsq = dq + a->Tq * H * D;           /* [Tq,H,D], [Tq,G,D] */
  s.dk = dsq + a->Tq * G * D;
  s.dv = s.dk + T * Hkv * D;
  s.dsk = s.dv + T * Hkv * D;
  s.y = s.dsk + T * G * D;
  s.dy = s.y + D;
  s.ungated = s.dy + D;
  s.weight = s.ungated + D;
  s.dweight = s.weight + a->sinks.n + T;
  memset(all, 0, (size_t)(s.y - all) * sizeof *all);
  for (int64_t group = 0; group < G; group++) NAME(open_sums)(a, b, group, base, sums + group * T);
  for (int64_t r = 0; r < a->Tq; r++) {
    s.dq = dq + r * H * D, s.dsq = dsq + r * G * D;
    memset(dF, 0, (size_t)(G * T) * sizeof *dF);
    for (int64_t group = 0; group < G; group++) {
      NAME(base_row)(a, b, group, r, 0, base + group * T);
      NAME(open_row)(a, b, group, r, base + group * T, sums + group * T, F + group * T);
    }
    for (int64_t h = 0; h < H; h++) {
      const int64_t group = h / (H / G);
      NAME(attention_backward_head)(a, b, h, r, F + group * T, dF + group * T, &s);
    }
    for (int64_t n = 0; n < G * T; n++) all[n] += dF[n], dF[n] = -dF[n];
    for (int64_t group = 0; group < G && a->sel.shift; group++)
      NAME(backward_select)(a, b, group, r, base + group * T, dF + group * T, &s);
  }
  for (int64_t r = 0; r < a->Tq; r++) {
    s.dq = dq + r * H * D, s.dsq = dsq + r * G * D;
    for (int64_t group = 0; group < G; group++) {
      NAME(base_row)(a, b, group, r, 0, base);
      NAME(backward_select)(a, b, group, r, base, all + group * T, &s);
    }
  }
  NAME(attention_store)(a->dq, a->s_q, b, 0, a->Tq, H, D, dq);
  NAME(attention_store)(a->dk, a->s_k, b, 0, T, Hkv, D, s.dk);
  NAME(attention_store)(a->dv, a->s_v, b, 0, T, Hkv, D, s.dv);
  if (!a->sel.bilinear) return;
  NAME(attention_store)(a->dsq, a->sel.s_sq, b, 0, a->Tq, G, D, dsq);
  NAME(attention_store)(a->dsk, a->sel.s_sk, b, 0, T, G, D, s.dsk);
}

static void NAME(backward_sequence)(const struct wn_attention *a, int64_t b, double *scratch,
                                    const struct NAME(sums) * shared) {
  const int64_t T = a->Tk, D = a->D, H = a->H, Hkv = a->Hkv, G = wn_selection_groups(a),
                blocks = (a->Tq + ROWS - 1) / ROWS;
  const bool on = a->sel.on;
  struct NAME(sums) s = *shared;
  double *carries = scratch;            /* [G,blocks,T] the carry at each block's first row */
  double *F = carries + G * blocks * T; /* [G,ROWS,T] of the current block */
  double *base = F + G * ROWS * T;      /* [G,ROWS,T] */
  s.dk = base + G * ROWS * T;
  s.dv = s.dk + T * Hkv * D;
  s.dsk = s.dv + T * Hkv * D;
  s.dq = s.dsk + G * T * D;
  s.dsq = s.dq + H * D;
  s.y = s.dsq + G * D;
  s.dy = s.y + D;
  s.ungated = s.dy + D;
  double *dF = s.ungated + D, *dS = dF + G * T; /* [G,T] */
  s.dkeys = dS + G * T;
  s.weight = s.dkeys + keyed_doubles(a);
  s.dweight = s.weight + a->sinks.n + T;
  memset(s.dk, 0, (size_t)(2 * T * Hkv * D + G * T * D) * sizeof *s.dk);
  memset(dS, 0, ((size_t)(G * T) + keyed_doubles(a)) * sizeof *dS);

  for (int64_t group = 0; on && group < G; group++) {
    double *carry = dF + group * T; /* unused before the rows begin */
    const REAL *f_in = a->sel.f_in ? (const REAL *)a->sel.f_in + (b * G + group) * wn_selection_stride(a) : NULL;
    for (int64_t j = 0; j < T; j++) carry[j] = f_in ? (double)f_in[j] : 0.0;
    for (int64_t r = 0; r < a->Tq; r++) {
      const int64_t position = r + T - a->Tq, first = document_start(a, b, position);
      if (r % ROWS == 0) memcpy(carries + (group * blocks + r / ROWS) * T, carry, (size_t)T * sizeof *carry);
      NAME(base_row)(a, b, group, r, first, base);
      NAME(select_row)(a, group, position, first, NULL, base, carry);
    }
  }
  for (int64_t block = blocks - 1; block >= 0; block--) {
    const int64_t start = block * ROWS, end = start + ROWS < a->Tq ? start + ROWS : a->Tq;
    for (int64_t group = 0; on && group < G; group++) {
      for (int64_t r = start; r < end; r++) {
        const int64_t position = r + T - a->Tq, first = document_start(a, b, position);
        double *row = base + (group * ROWS + r - start) * T, *to = F + (group * ROWS + r - start) * T;
        NAME(base_row)(a, b, group, r, first, row);
        memcpy(to + first, row + first, (size_t)(position + 1 - first) * sizeof *to);
        NAME(select_row)(a, group, position, first, NULL, to, carries + (group * blocks + block) * T);
      }
    }
    for (int64_t r = end - 1; r >= start; r--) {
      const int64_t position = position_of(a, r), first = document_start(a, b, position);
      memset(s.dq, 0, (size_t)(H * D + G * D) * sizeof *s.dq); /* clears dsq too */
      memset(dF, 0, (size_t)(G * T) * sizeof *dF);
      for (int64_t h = 0; h < H; h++) {
        const int64_t group = h / (H / G);
        NAME(attention_backward_head)
        (a, b, h, r, on ? F + (group * ROWS + r - start) * T : NULL, on ? dF + group * T : NULL, &s);
      }
      for (int64_t group = 0; on && group < G; group++) {
        const double *row = F + (group * ROWS + r - start) * T;
        double *down = dS + group * T, *here = dF + group * T;
        const double dM = NAME(gradient_of_M)(a, b, group, r);
        for (int64_t j = first; j <= position && dM != 0; j++)
          if (row[j] < a->sel.mem_tau) here[j] -= dM / a->sel.mem_tau;
        if (!a->sel.shift)
          for (int64_t j = first; j <= position; j++) down[j] += here[j];
        NAME(backward_select)(a, b, group, r, base + (group * ROWS + r - start) * T, down, &s);
        if (a->sel.shift)
          for (int64_t j = first; j <= position; j++) down[j] += here[j];
      }
      if (on && a->sel.bilinear && a->dsq)
        for (int64_t n = 0; n < G * D; n++)
          ((REAL *)a->dsq)[b * a->sel.s_sq.b + r * a->sel.s_sq.t + n / D * a->sel.s_sq.h + n % D] = (REAL)s.dsq[n];
      if (a->dq)
        for (int64_t n = 0; n < H * D; n++)
          ((REAL *)a->dq)[b * a->s_q.b + r * a->s_q.t + n / D * a->s_q.h + n % D] = (REAL)s.dq[n];
    }
  }
  NAME(attention_store)(a->dk, a->s_k, b, a->dk_from, T, Hkv, D, s.dk);
  NAME(attention_store)(a->dv, a->s_v, b, a->dk_from, T, Hkv, D, s.dv);
  if (on && a->sel.bilinear) NAME(attention_store)(a->dsk, a->sel.s_sk, b, a->dk_from, T, G, D, s.dsk);
  NAME(store_numbers)(a, b, s.dkeys);
}

static void NAME(attention_add)(void *to, const double *x, int64_t n) {
  if (!to) return;
  for (int64_t i = 0; i < n; i++) ((REAL *)to)[i] = (REAL)((double)((REAL *)to)[i] + x[i]);
}

static struct NAME(sums) NAME(shared_at)(const struct wn_attention *a, double *at) {
  const int64_t P = a->relative.P * a->D, S = a->Hkv * a->sinks.n * a->D;
  return (struct NAME(sums)){.dp = at,
                             .dsink_k = at + P,
                             .dsink_v = at + P + S,
                             .dz = at + P + 2 * S,
                             .dgate = at + P + 2 * S + a->H,
                             .by_distance = at + P + 2 * S + 2 * a->H,
                             .dstrength = at + P + 2 * S + (2 + distances_of(a)) * a->H};
}

static void NAME(backward_task)(void *call, int64_t b) {
  const struct wn_attention *a = ((const struct wn_call *)call)->a;
  const size_t each = wn_ref_attention_backward_doubles(a);
  double *mine = (double *)((const struct wn_call *)call)->exec->scratch + (size_t)wn_hand() * each;
  const struct NAME(sums) sums = NAME(shared_at)(a, mine);
  if (a->sel.on && a->open)
    NAME(backward_open_selection)(a, b, mine + shared_doubles(a), &sums);
  else
    NAME(backward_sequence)(a, b, mine + shared_doubles(a), &sums);
}

static wn_status NAME(attention_backward)(const struct wn_exec *exec, const struct wn_attention *a) {
  const int team = workers(exec, a->B);
  const size_t each = wn_ref_attention_backward_doubles(a), shared = shared_doubles(a);
  double *scratch = exec->scratch;
  for (int t = 0; t < team; t++) memset(scratch + (size_t)t * each, 0, shared * sizeof *scratch);
  wn_parallel_for(exec->threads, a->B, NAME(backward_task), &(struct wn_call){exec, a});
  for (int t = 1; t < team; t++)
    for (size_t i = 0; i < shared; i++) scratch[i] += scratch[(size_t)t * each + i];
  const struct NAME(sums) sums = NAME(shared_at)(a, scratch);
  if (a->relative.P > 0) NAME(attention_add)(a->relative.dp, sums.dp, a->relative.P * a->D);
  for (int64_t h = 0; wn_score_learns(a) && h < a->H; h++)
    wn_score_gradient(a, REAL_IS_DOUBLE, h, sums.by_distance + h * distances_of(a),
                      sizeof(double) == 8 ? WN_F64 : WN_F32 /* the tests' naive computation */);
  if (a->sel.on) NAME(attention_add)(a->sel.dstrength, sums.dstrength, wn_selection_groups(a));
  if (a->sinks.n > 0) {
    NAME(attention_add)(a->sinks.dk, sums.dsink_k, a->Hkv * a->sinks.n * a->D);
    NAME(attention_add)(a->sinks.dv, sums.dsink_v, a->Hkv * a->sinks.n * a->D);
  }
  for (int64_t h = 0; h < a->H; h++) {
    if (a->span.on && !a->span.dynamic && a->span.dz) ((REAL *)a->span.dz)[h * a->span.s_z.h] += (REAL)sums.dz[h];
    if (a->exclusive.on && a->exclusive.gate && a->exclusive.dgate)
      ((REAL *)a->exclusive.dgate)[h] += (REAL)sums.dgate[h];
  }
  return WN_OK;
}
#endif
