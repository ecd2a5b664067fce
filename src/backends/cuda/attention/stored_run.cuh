/* Runs a call of attention with stored attention weights: chunks of rows, scratch, launches. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_STORED_RUN_CUH
#define WN_BACKENDS_CUDA_ATTENTION_STORED_RUN_CUH

#include <math.h>
#include "backends/cuda/attention/bf16.cuh"
#include "backends/cuda/attention/columns.cuh"
#include "backends/cuda/attention/floats.cuh"
#include "backends/cuda/attention/matrices.cuh"
#include "backends/cuda/attention/rows_back.cuh"
#include "backends/cuda/attention/run.cuh"
#include "backends/cuda/attention/score.cuh"

namespace wn_cuda {

struct stored_call {
  enum { WINDOW = 128, EVERYTHING = INT32_MAX / 2 }; /* rows of a chunk, if the caller does not say */
  stored_args s;
  const wn_attention *c;
  bool backward_pass;
  int windows;
  room scratch;
  cudaStream_t stream;
  const char *what = nullptr;

  /* F [B,G,ld] at chunks' first rows. Forward: two, used in turn. Backward: one for each group of chunks, and one for
   * each chunk of the current group. */
  float *carries, *group_carries;
  int64_t carry;
  int group;
  struct sums {
    float *dk, *dv, *dsk, *dp, *sink_k, *sink_v; /* sums over the chunks, by column */
    float *by_distance;                          /* [H,distances_apart()] of the gradients of logits */
  } sum;
  size_t sums_from, sums_bytes;

  bool failed(cudaError_t error) {
    if (error != cudaSuccess) what = cudaGetErrorString(error);
    return error != cudaSuccess;
  }
  static int tiles(int64_t n) { return (int)((n + STORED_TILE - 1) / STORED_TILE); }

  /* ---- arguments ---- */

  void arguments() {
    call<floats<64>> fused;
    fused.arguments(c);
    s = stored_args();
    s.a = fused.a;
    s.type = c->row_type == WN_BF16 ? BF16S : FLOATS;
    s.value_type = c->k_type == WN_GGUF_F16 ? HALVES : s.type;
    s.open = c->open, s.key_count = c->key_count;
    s.a.span.dz = nullptr;
    if (c->sel.on) s.a.sel.M = c->sel.mem ? static_cast<float *>(c->sel.M) : nullptr;
    s.relative.P = (int)c->relative.P, s.relative.ld = tiles(c->relative.P) * STORED_TILE;
    s.maps = (int)c->maps;
    for (int n = 0; n < s.maps; n++) s.map[n] = c->map[n], s.id[n] = c->map[n].kind->id;
    s.sinks.n = (int)c->sinks.n, s.sinks.ld = tiles(c->sinks.n) * STORED_TILE;
    s.threshold.on = c->threshold.on, s.threshold.tau = c->threshold.tau;
    s.threshold.control = c->threshold.control, s.threshold.count = c->threshold.count;
    s.ld = tiles(c->Tk) * STORED_TILE;
  }

  bool keeps_products() const { /* score maps need them again */
    return backward_pass && wn_score_bends(c);
  }
  bool keyed() const { return wn_score_keyed(c) > 0; }
  bool changes_output() const { return s.a.gate.on || s.a.exclusive.on; }

  /* Scratch grows with every size of the call, so scratch for a larger call suffices for a smaller one. */
  void plan(int64_t window) {
    arguments();
    if (window < 1) window = WINDOW;
    if (s.open && s.a.sel.on) window = c->Tq; /* a row sees what all others select */
    s.R = (int)(window < c->Tq ? window : c->Tq);
    if (s.R < c->Tq) s.R = tiles(s.R) * STORED_TILE;
    windows = (int)((c->Tq + s.R - 1) / s.R);
    carry = (int64_t)c->B * s.a.G * s.ld;
    for (group = 1; group * group < windows;) group++;
  }
  void lay() {
    const int64_t rows = (int64_t)c->B * c->H * s.R, groups = (int64_t)c->B * s.a.G * s.R;
    s.W = scratch.take<float>(rows * s.ld);
    s.raw = keeps_products() ? scratch.take<float>(rows * s.ld) : s.W;
    s.relative.row = scratch.take<float>(rows * s.relative.ld);
    s.sinks.row = scratch.take<float>(rows * s.sinks.ld);
    s.out = scratch.take<float>(rows * c->D);
    if (s.a.sel.on) {
      s.F = scratch.take<float>(groups * s.ld), s.S = scratch.take<float>(groups * s.ld);
      carries = scratch.take<float>(windows > 1 ? (backward_pass ? group : 2) * carry : 0);
      group_carries = scratch.take<float>(windows > 1 && backward_pass ? (windows + group - 1) / group * carry : 0);
    }
    if (backward_pass) lay_backward(rows);
  }
  void lay_backward(int64_t rows) {
    const int64_t by_row = (int64_t)c->B * c->H * c->Tq, keys = (int64_t)c->B * c->Tk * c->Hkv * c->D;
    s.dA = scratch.take<float>(rows * s.ld);
    s.sinks.back = scratch.take<float>(rows * s.sinks.ld);
    s.dy = scratch.take<float>(changes_output() ? rows * c->D : 0);
    if (s.a.sel.on) {
      s.back = scratch.take<float>(carry);
      s.a.sel.dM = c->sel.mem ? static_cast<const float *>(c->sel.dM) : nullptr;
      s.a.sel.dstrength = c->sel.dstrength ? scratch.take<float>(carry) : nullptr;
    }
    if (c->exclusive.on && c->exclusive.gate && c->exclusive.dgate) s.a.exclusive.dgate = scratch.take<float>(by_row);
    if (c->span.on && c->span.dz) s.a.span.dz = scratch.take<float>(by_row), s.edge = scratch.take<float>(rows);
    if (s.a.gate.on) s.a.gate.dg = static_cast<float *>(c->gate.dg);
    sums_from = scratch.used;
    sum.dk = scratch.take<float>(keys), sum.dv = scratch.take<float>(keys);
    sum.dsk = scratch.take<float>(c->sel.bilinear ? (int64_t)c->B * c->Tk * s.a.G * c->D : 0);
    sum.dp = scratch.take<float>(c->relative.P * c->D);
    sum.by_distance = scratch.take<float>(wn_score_learns(c) ? c->H * distances_apart() : 0);
    sum.sink_k = scratch.take<float>(c->Hkv * c->sinks.n * c->D);
    sum.sink_v = scratch.take<float>(c->Hkv * c->sinks.n * c->D);
    s.numbers = keyed() ? scratch.take<float>(c->maps * c->B * c->H * s.ld) : nullptr;
    s.sum_dv = sum.dv;
    sums_bytes = scratch.used - sums_from;
  }

  void window_at(int w) {
    s.a.row0 = w * s.R, s.a.rows = (int)(c->Tq - s.a.row0 < s.R ? c->Tq - s.a.row0 : s.R);
    s.a.first_rows = w == 0, s.a.last_rows = w == windows - 1;
  }

  /* ---- products ---- */

  static rows_of rows(const void *p, int type, const wn_stride &by, int share) {
    return {p, {by.b, by.t, by.h}, type, share, false};
  }
  /* The chunk's rows of an array with all of the call's rows. */
  rows_of of_window(const void *p, int type, const wn_stride &by, int share) const {
    const size_t size = type == FLOATS ? 4 : 2;
    return rows(static_cast<const char *>(p) + (size_t)(s.a.row0 * by.t) * size, type, by, share);
  }
  int per() const { return (int)(c->H / c->Hkv); }
  rows_of queries() const { return of_window(c->q, s.type, c->s_q, 1); }
  rows_of keys() const { return rows(c->k, s.value_type, c->s_k, per()); }
  rows_of values() const { return rows(c->v, s.value_type, c->s_v, per()); }
  rows_of gradients() const {
    if (!changes_output()) return of_window(c->dy, s.type, c->s_y, 1);
    return rows(s.dy, s.type, {(int64_t)s.R * c->H * c->D, c->H * c->D, c->D}, 1);
  }
  rows_of sink_rows(const void *p) const { return rows(p, FLOATS, {0, c->D, c->sinks.n * c->D}, per()); }
  rows_of distances() const { return rows(c->relative.p, FLOATS, {0, c->D, 0}, 1); }
  rows_of selecting(bool of_keys) const {
    if (c->sel.bilinear)
      return of_keys ? rows(c->sel.sk, FLOATS, c->sel.s_sk, 1) : of_window(c->sel.sq, FLOATS, c->sel.s_sq, 1);
    const int64_t share = c->H / s.a.G;
    const size_t size = s.type == FLOATS ? 4 : 2, key_size = s.value_type == FLOATS ? 4 : 2;
    wn_stride by = of_keys ? c->s_k : c->s_q;
    by.h *= of_keys ? (s.a.G > 1 ? 1 : 0) : share;
    const int64_t h = of_keys && s.a.G > 1 ? 0 : c->sel.head / (of_keys ? per() : 1);
    const char *p = static_cast<const char *>(of_keys ? c->k : c->q);
    p += (size_t)(h * (of_keys ? c->s_k.h : c->s_q.h)) * (of_keys ? key_size : size);
    return of_keys ? rows(p, s.value_type, by, 1) : of_window(p, s.type, by, 1);
  }

  template <class P> bool whole(const rows_of &x) const {
    constexpr int n = 16 / (int)sizeof(typename P::element);
    const int type = sizeof(typename P::element) == 4 ? FLOATS : BF16S;
    return x.type == type && c->D % n == 0 && reinterpret_cast<uintptr_t>(x.p) % 16 == 0 && x.s.b % n == 0 &&
           x.s.t % n == 0 && x.s.h % n == 0;
  }
  product_args product(float *M, int heads, int ld, int N, int last) const {
    product_args p = product_args();
    p.M = M, p.H = heads, p.R = s.R, p.ld = ld, p.D = (int)c->D, p.rows = s.a.rows, p.N = N, p.last = last;
    p.B = (int)c->B, p.groups = 1;
    return p;
  }
  int reach() const {
    return s.open ? (int)EVERYTHING : s.a.row0 + s.a.offset;
  } /* the last key that the first row sees */

  template <class P> void row_products_on(product_args p) {
    p.x.vectors = whole<P>(p.x), p.z.vectors = whole<P>(p.z);
    if (failed(wn_shared_limit(row_products<P>, product_room<P>::TWO))) return;
    WN_LAUNCH(dim3((unsigned)tiles(p.N), (unsigned)tiles(p.rows), (unsigned)(p.H * p.B)), dim3(P::THREADS),
              product_room<P>::TWO, stream, (row_products<P>), p);
  }
  void dot(product_args p, const rows_of &x, const rows_of &z) {
    p.x = x, p.z = z;
    if (x.type == BF16S && z.type == BF16S)
      row_products_on<bf16<64>>(p);
    else
      row_products_on<floats<64>>(p);
  }
  template <class P> void mixed_rows_on(product_args p) {
    p.z.vectors = whole<P>(p.z);
    if (failed(wn_shared_limit(mixed_rows<P>, product_room<P>::ONE))) return;
    WN_LAUNCH(dim3((unsigned)tiles(p.rows), (unsigned)tiles(p.D), (unsigned)(p.H * p.B)), dim3(P::THREADS),
              product_room<P>::ONE, stream, (mixed_rows<P>), p);
  }
  void mix(product_args p, const rows_of &z, bool add) {
    p.z = z, p.out = s.out, p.add = add;
    if (z.type == BF16S)
      mixed_rows_on<bf16<64>>(p);
    else
      mixed_rows_on<floats<64>>(p);
  }
  template <class P> void mixed_columns_on(product_args p) {
    p.x.vectors = whole<P>(p.x);
    if (failed(wn_shared_limit(mixed_columns<P>, product_room<P>::ONE))) return;
    WN_LAUNCH(dim3((unsigned)tiles(p.N), (unsigned)tiles(p.D), (unsigned)(p.groups * (p.all_batches ? 1 : p.B))),
              dim3(P::THREADS), product_room<P>::ONE, stream, (mixed_columns<P>), p);
  }
  void gather(product_args p, const rows_of &x, float *to, int groups, bool all_batches) {
    p.x = x, p.out = to, p.groups = groups, p.all_batches = all_batches;
    if (x.type == BF16S)
      mixed_columns_on<bf16<64>>(p);
    else
      mixed_columns_on<floats<64>>(p);
  }
  product_args on_keys(float *M) const { return product(M, (int)c->H, s.ld, (int)c->Tk, reach()); }
  product_args on_selection() const { return product(s.S, s.a.G, s.ld, (int)c->Tk, reach()); }
  product_args on_sinks(float *M) const { return product(M, (int)c->H, s.sinks.ld, s.sinks.n, EVERYTHING); }
  product_args on_distances() const { /* slots may be any distance apart */
    return product(s.relative.row, (int)c->H, s.relative.ld, s.relative.P, s.a.at ? (int)EVERYTHING : reach());
  }

  /* ---- steps ---- */

  dim3 by_row() const { return dim3((unsigned)s.a.rows, (unsigned)c->H, (unsigned)c->B); }
  dim3 by_four(int64_t heads) const { return dim3((unsigned)(s.a.rows + 3) / 4, (unsigned)heads, (unsigned)c->B); }
  dim3 by_column(int64_t n, int64_t groups) const {
    return dim3((unsigned)((n + STORED_THREADS - 1) / STORED_THREADS), (unsigned)groups, (unsigned)c->B);
  }

  int64_t distances_apart() const { return wn_score_distances(c).last + 1 - wn_score_distances(c).first; }
  score_args on_map(int n, bool of_selecting) const {
    score_args w = score_args();
    w.s = s, w.map = c->map[n], w.selecting = of_selecting, w.sums = sum.by_distance;
    w.first = (int)wn_score_distances(c).first, w.distances = (int)distances_apart();
    return w;
  }
  /* Adds biases that stored_logit does not know to the products of queries, or of what selects, with keys. */
  void add_biases(bool of_selecting) {
    for (int n = 0; n < s.maps; n++)
      if (s.id[n] == WN_SCORE_OTHER)
        score_kernels_for(c->map[n].kind)
            ->values(on_map(n, of_selecting),
                     dim3((unsigned)s.a.rows, (unsigned)(of_selecting ? s.a.G : c->H), (unsigned)c->B), stream);
  }
  void select_rows() {
    dot(on_selection(), selecting(false), selecting(true));
    if (!c->sel.bilinear) add_biases(true);
    WN_LAUNCH(by_column(s.ld, s.a.G), dim3(STORED_THREADS), 0, stream,
              keyed() ? stored_select<true> : stored_select<false>, s);
  }
  void weigh() {
    dot(on_keys(s.raw), queries(), keys());
    add_biases(false);
    if (s.relative.P > 0) dot(on_distances(), queries(), distances());
    if (s.sinks.n > 0) dot(on_sinks(s.sinks.row), queries(), sink_rows(c->sinks.k));
    if (s.a.sel.on) select_rows();
    WN_LAUNCH(by_row(), dim3(STORED_THREADS), 0, stream, keyed() ? stored_logits<true> : stored_logits<false>, s);
    WN_LAUNCH(by_row(), dim3(STORED_THREADS), 0, stream, stored_weights, s);
    if (s.threshold.on) WN_LAUNCH(by_row(), dim3(STORED_THREADS), 0, stream, stored_threshold, s);
  }
  void mix_values(float *weights) {
    if (s.a.dropout.limit > 0) WN_LAUNCH(by_row(), dim3(STORED_THREADS), 0, stream, stored_dropout, s, weights);
    mix(on_keys(s.a.dropout.limit > 0 ? weights : s.W), values(), false);
    if (s.sinks.n > 0) mix(on_sinks(s.sinks.row), sink_rows(c->sinks.v), true);
  }

  const char *forward() {
    lay();
    s.inspect = static_cast<float *>(c->sel.on ? c->sel.F : nullptr);
    s.a.sel.f_out = static_cast<float *>(c->sel.f_out);
    s.attention_sums = static_cast<float *>(c->slots.sums);
    for (int w = 0; w < windows; w++) {
      window_at(w);
      s.run = w > 0 ? carries + w % 2 * carry : nullptr;
      s.run_out = w < windows - 1 ? carries + (w + 1) % 2 * carry : nullptr;
      weigh();
      if (s.a.sel.M) WN_LAUNCH(by_four(s.a.G), dim3(STORED_THREADS), 0, stream, stored_memory, s);
      if (s.attention_sums)
        WN_LAUNCH(by_column(c->Tk, s.a.slot_groups), dim3(STORED_THREADS), 0, stream, stored_sums, s);
      mix_values(s.W);
      WN_LAUNCH(by_four(c->H), dim3(STORED_THREADS), 0, stream, stored_output, s);
    }
    if (!what) failed(cudaGetLastError());
    return what;
  }

  void store(const float *x, int64_t rows, int from, int64_t heads, int64_t B, void *to, int type, const wn_stride &by,
             float factor, bool add) {
    if (!to || rows <= from || heads < 1) return;
    const store_args w = {x, to, {by.b, by.t, by.h}, type, (int)rows, from, (int)c->D, factor, add};
    WN_LAUNCH(dim3((unsigned)(rows - from), (unsigned)heads, (unsigned)B), dim3(STORED_THREADS), 0, stream,
              stored_store, w);
  }
  /* Stores `out`, one chunk's rows, as a gradient of rows. */
  void store_rows(void *to, int type, const wn_stride &by, int64_t heads) {
    if (!to) return;
    char *first = static_cast<char *>(to) + (size_t)(s.a.row0 * by.t) * (type == FLOATS ? 4 : 2);
    const store_args w = {s.out, first, {by.b, by.t, by.h}, type, s.R, 0, (int)c->D, s.a.scale, false};
    WN_LAUNCH(dim3((unsigned)s.a.rows, (unsigned)heads, (unsigned)c->B), dim3(STORED_THREADS), 0, stream, stored_store,
              w);
  }

  void window_back() {
    weigh();
    if (changes_output()) {
      mix_values(s.dA);
      WN_LAUNCH(by_four(c->Hkv), dim3(STORED_THREADS), 0, stream, stored_output_back, s);
    }
    dot(on_keys(s.dA), gradients(), values());
    if (s.sinks.n > 0) dot(on_sinks(s.sinks.back), gradients(), sink_rows(c->sinks.v));
    WN_LAUNCH(by_row(), dim3(STORED_THREADS), 0, stream, stored_rows_back, s);
    if (s.a.sel.on) WN_LAUNCH(by_column(s.ld, s.a.G), dim3(STORED_THREADS), 0, stream, stored_select_back, s);
    if (keyed()) {
      WN_LAUNCH(by_column(c->Tk, c->H), dim3(STORED_THREADS), 0, stream, stored_numbers_back, s);
      WN_LAUNCH(by_row(), dim3(STORED_THREADS), 0, stream, stored_logits_back<true>, s);
    } else if ((s.a.sel.on && s.a.sel.joins) || keeps_products() || s.relative.P > 0) {
      WN_LAUNCH(by_row(), dim3(STORED_THREADS), 0, stream, stored_logits_back<false>, s);
    }
    if (wn_score_learns(c))
      WN_LAUNCH(dim3((unsigned)((distances_apart() + STORED_THREADS - 1) / STORED_THREADS), (unsigned)c->H),
                dim3(STORED_THREADS), 0, stream, score_sum, on_map(0, false));
    mix(on_keys(s.dA), keys(), false);
    if (s.relative.P > 0) mix(on_distances(), distances(), true);
    if (s.sinks.n > 0) mix(on_sinks(s.sinks.back), sink_rows(c->sinks.k), true);
    store_rows(c->dq, s.type, c->s_q, c->H);
    gather(on_keys(s.dA), queries(), sum.dk, (int)c->Hkv, false);
    gather(on_keys(s.W), gradients(), sum.dv, (int)c->Hkv, false);
    if (s.relative.P > 0) gather(on_distances(), queries(), sum.dp, 1, true);
    if (s.sinks.n > 0) {
      gather(on_sinks(s.sinks.back), queries(), sum.sink_k, (int)c->Hkv, true);
      gather(on_sinks(s.sinks.row), gradients(), sum.sink_v, (int)c->Hkv, true);
    }
    if (!c->sel.bilinear || !c->sel.on) return;
    mix(on_selection(), selecting(true), false);
    store_rows(c->dsq, FLOATS, c->sel.s_sq, s.a.G);
    gather(on_selection(), selecting(false), sum.dsk, s.a.G, false);
  }

  float *carry_at(int w) const {
    return w == 0 ? nullptr : w % group == 0 ? group_carries + w / group * carry : carries + w % group * carry;
  }
  /* Recomputes F at chunk w + 1 from F at chunk w. */
  void select_again(int w) {
    float *F = s.F;
    window_at(w);
    s.F = nullptr, s.run = carry_at(w), s.run_out = carry_at(w + 1);
    if (s.relative.P > 0) dot(on_distances(), queries(), distances());
    select_rows();
    s.F = F;
  }

  const char *backward() {
    lay();
    s.a.lse = nullptr, s.threshold.count = nullptr; /* are forward's */
    s.a.gate.ungated = nullptr, s.a.sel.M = nullptr;
    const int64_t sums_count = (int64_t)(sums_bytes / sizeof(float));
    WN_LAUNCH(dim3((unsigned)((sums_count + 255) / 256)), dim3(256), 0, stream, stored_clear,
              reinterpret_cast<float *>(scratch.base + sums_from), sums_count);
    const int last = (windows - 1) / group * group; /* the first chunk of the last group */
    for (int w = 0; s.a.sel.on && w < last; w++) select_again(w);
    for (int first = last; first >= 0; first -= group) {
      const int end = windows < first + group ? windows : first + group;
      for (int w = first; s.a.sel.on && w < end - 1; w++) select_again(w);
      for (int w = end - 1; w >= first; w--) {
        window_at(w);
        s.run = carry_at(w), s.run_out = nullptr;
        window_back();
      }
    }
    const int from = (int)c->dk_from;
    store(sum.dk, c->Tk, from, c->Hkv, c->B, c->dk, s.type, c->s_k, s.a.scale, false);
    store(sum.dv, c->Tk, from, c->Hkv, c->B, c->dv, s.type, c->s_v, 1, false);
    if (c->sel.on && c->sel.bilinear)
      store(sum.dsk, c->Tk, from, s.a.G, c->B, c->dsk, FLOATS, c->sel.s_sk, s.a.scale, false);
    store(sum.dp, c->relative.P, 0, 1, 1, c->relative.dp, FLOATS, {0, c->D, 0}, s.a.scale, true);
    if (s.sinks.n > 0) {
      const wn_stride by = {0, c->D, c->sinks.n * c->D};
      store(sum.sink_k, c->sinks.n, 0, c->Hkv, 1, c->sinks.dk, FLOATS, by, s.a.scale, true);
      store(sum.sink_v, c->sinks.n, 0, c->Hkv, 1, c->sinks.dv, FLOATS, by, 1, true);
    }
    for (int n = 0; n < s.maps; n++)
      if (c->map[n].dkey)
        WN_LAUNCH(by_column(c->Tk, c->Hkv), dim3(STORED_THREADS), 0, stream, stored_numbers, s, n,
                  static_cast<float *>(c->map[n].dkey), call<floats<64>>::of(c->map[n].s_key), from);
    for (int n = 0; n < s.maps; n++)
      if (c->map[n].dtheta)
        score_kernels_for(c->map[n].kind)
            ->gradient(on_map(n, false), dim3((unsigned)c->map[n].n, (unsigned)c->H), stream);
    call<floats<64>> fused; /* for its sums over rows */
    fused.a = s.a, fused.a.key_tiles = s.ld;
    fused.sums_by_head(c, stream);
    if (!what) failed(cudaGetLastError());
    return what;
  }
};

} // namespace wn_cuda

#endif
