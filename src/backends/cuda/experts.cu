// Mixture of experts: routes rows on the device; one launch computes the products of all experts (experts.cuh). Few
// rows, and rows with rows_apart, use matrix-vector products; others tiles of 64 rows.
#include "backends/cuda/experts.cuh"

struct experts_room {
  size_t bytes;
  experts_weights *table;
  experts_tile *tile;
  int32_t *count, *end, *order; // [E], [E], [A]
  double *share, *mean, *rows;  // [E], [E], [1]
  float *x, *out;               // [A,C] each, by place; x is unused in forward of few rows
  float *hidden, *d_hidden;     // [A,F] or [M,S]
  float *dw, *dlogits, *z;      // [A] by place, [M,E], [M]
  char *base;
  template <class T> T *take(int64_t n) {
    T *p = base ? reinterpret_cast<T *>(base + bytes) : nullptr;
    bytes += (size_t)(n * (int64_t)sizeof(T) + 255) / 256 * 256;
    return p;
  }
};

// Use matrix-vector products? With bf16 there is one kernel, in which rows are always independent.
static bool few(const struct wn_exec *exec, const struct wn_experts *a, bool backward) {
  return !backward && exec->precision != WN_BF16 && (a->M <= EXPERTS_FEW || a->rows_apart);
}
static int64_t tiles_of(const struct wn_experts *a, int rows) {
  const int64_t A = a->M * a->top;
  return wn_cuda_min(A, A / rows + a->E);
}

static experts_room room_of(const struct wn_exec *exec, const struct wn_experts *a, bool backward, void *base) {
  const int64_t A = a->M * a->top, of_experts = A * a->F, of_shared = a->M * a->S;
  const int64_t hidden = of_experts > of_shared ? of_experts : of_shared;
  const bool by_few = few(exec, a, backward);
  experts_room r = {};
  r.base = static_cast<char *>(base);
  r.table = r.take<experts_weights>(a->E);
  r.tile = r.take<experts_tile>(tiles_of(a, by_few ? EXPERTS_FEW : EXPERTS_MANY));
  r.count = r.take<int32_t>(a->E), r.end = r.take<int32_t>(a->E), r.order = r.take<int32_t>(A);
  r.share = r.take<double>(a->E), r.mean = r.take<double>(a->E), r.rows = r.take<double>(1);
  r.x = r.take<float>(by_few ? 0 : A * a->C), r.out = r.take<float>(A * a->C), r.hidden = r.take<float>(hidden);
  if (!backward) return r;
  r.d_hidden = r.take<float>(hidden);
  r.dw = r.take<float>(A), r.dlogits = r.take<float>(a->M * a->E), r.z = r.take<float>(a->M);
  return r;
}

// ---- operations of the backend that it calls ----

static struct wn_linear router_of(const struct wn_experts *a) {
  struct wn_linear l = {};
  l.M = a->M, l.N = a->E, l.K = a->C, l.rows_apart = a->rows_apart;
  l.x = a->x, l.ldx = a->C, l.w = a->router, l.y = a->prob, l.ldy = a->E, l.lddy = a->E;
  l.dx = a->dx, l.lddx = a->C, l.accumulate_dx = true, l.dw = a->d_router;
  return l;
}
static struct wn_linear shared_in_of(const struct wn_experts *a) {
  struct wn_linear l = {};
  l.M = a->M, l.N = 2 * a->S, l.K = a->C, l.rows_apart = a->rows_apart;
  l.x = a->x, l.ldx = a->C, l.w = a->shared.in, l.packed = a->shared.packed_in, l.y = a->shared_in, l.ldy = 2 * a->S;
  l.dy = a->shared_in, l.lddy = 2 * a->S, l.dx = a->dx, l.lddx = a->C, l.accumulate_dx = a->accumulate_dx;
  l.dw = a->shared.d_in;
  return l;
}
static struct wn_linear shared_out_of(const struct wn_experts *a, const experts_room *r) {
  struct wn_linear l = {};
  l.M = a->M, l.N = a->C, l.K = a->S, l.rows_apart = a->rows_apart;
  l.x = r->hidden, l.ldx = a->S, l.w = a->shared.out, l.packed = a->shared.packed_out, l.y = a->shared_out,
  l.ldy = a->C;
  l.dy = a->dy, l.lddy = a->C, l.dx = r->d_hidden, l.lddx = a->S;
  return l;
}

size_t wn_cuda_experts_scratch(const struct wn_exec *exec, const struct wn_experts *a, bool backward) {
  experts_room r = room_of(exec, a, backward, nullptr);
  const struct wn_linear in = shared_in_of(a), out = shared_out_of(a, &r);
  const size_t most = a->S ? wn_cuda_linear_scratch(exec, &in, backward) : 0;
  const size_t other = a->S ? wn_cuda_linear_scratch(exec, &out, backward) : 0;
  return r.bytes + (other > most ? other : most);
}

// ---- steps ----

static bool reads_wide(wn_gguf_type type, const void *data, int64_t K) {
  switch (type) {
#define WN_CASE(type)                                                                                                  \
  case type:                                                                                                           \
    return wn_matvec_reads<type>(data, K);
    WN_PACKED_TYPES(WN_CASE)
#undef WN_CASE
  default:
    return false;
  }
}
// K: number of columns. x_aligned: rows of x are aligned.
static experts_matrix matrix_of(const void *dense, const struct wn_packed *packed, void *d, int64_t K, bool x_aligned) {
  experts_matrix m = {};
  m.wide = x_aligned && K % 4 == 0;
  if (packed) {
    m.packed = wn_packed_matrix_of(packed);
    for (int i = 0; i < packed->count; i++)
      m.wide = m.wide && reads_wide(packed->part[i].type, packed->part[i].data, K);
  } else {
    m.dense = static_cast<const float *>(dense), m.d = static_cast<float *>(d);
    m.wide = m.wide && reads_wide(WN_GGUF_F32, dense, K);
  }
  return m;
}
static void put_table(const struct wn_exec *exec, const struct wn_experts *a, const experts_room *r) {
  const bool aligned = reinterpret_cast<uintptr_t>(a->x) % 16 == 0;
  for (int64_t first = 0; first < a->E; first += EXPERTS_EACH) {
    const int count = (int)wn_cuda_min(EXPERTS_EACH, a->E - first);
    experts_some some = {};
    for (int i = 0; i < count; i++) {
      const struct wn_expert *e = &a->expert[first + i];
      some.expert[i].in = matrix_of(e->in, e->packed_in, e->d_in, a->C, aligned);
      some.expert[i].out = matrix_of(e->out, e->packed_out, e->d_out, a->F, true);
    }
    WN_LAUNCH(1, 32, 0, wn_cuda_stream(exec), experts_table_kernel, some, count, r->table + first);
  }
}

static void put_places(const struct wn_exec *exec, const struct wn_experts *a, const experts_room *r, int tile_rows) {
  const experts_places p = {
      (int)(a->M * a->top),        (int)a->E, a->chosen, a->place, r->order, r->count, r->end, tile_rows,
      (int)tiles_of(a, tile_rows), r->tile};
  WN_LAUNCH((unsigned)a->E, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_count_kernel, p);
  WN_LAUNCH((unsigned)a->E, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_place_kernel, p);
}

static unsigned warps(int64_t rows) {
  return (unsigned)wn_cuda_parts(rows, WN_CUDA_THREADS / 32);
}

static experts_load load_of(const struct wn_experts *a, const experts_room *r) {
  return {a->M,      a->T,         (int)a->E, (int)a->top, static_cast<const float *>(a->prob),
          a->chosen, a->row_count, r->share,  r->mean,     r->rows};
}

static void gather(const struct wn_exec *exec, const struct wn_experts *a, const experts_room *r, const void *from,
                   float *to) {
  const int64_t A = a->M * a->top;
  WN_LAUNCH(wn_cuda_blocks(A * a->C), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_gather_kernel, A, a->C,
            (int)a->top, r->order, static_cast<const float *>(from), to);
}

static void product(const struct wn_exec *exec, const struct wn_experts *a, const experts_room *r, bool columns,
                    bool out, int64_t N, int64_t K, const float *from, float *to) {
  const experts_product x = {r->table, r->tile, out, N, K, from, nullptr, (int)a->top, to};
  const dim3 grid((unsigned)tiles_of(a, EXPERTS_MANY), (unsigned)wn_cuda_parts(N, 64));
  const bool bf16 = exec->precision == WN_BF16;
  if (columns && bf16)
    WN_LAUNCH(grid, 256, 0, wn_cuda_stream(exec), (experts_product_kernel<true, true>), x);
  else if (columns)
    WN_LAUNCH(grid, 256, 0, wn_cuda_stream(exec), (experts_product_kernel<true, false>), x);
  else if (bf16)
    WN_LAUNCH(grid, 256, 0, wn_cuda_stream(exec), (experts_product_kernel<false, true>), x);
  else
    WN_LAUNCH(grid, 256, 0, wn_cuda_stream(exec), (experts_product_kernel<false, false>), x);
}
static void product_few(const struct wn_exec *exec, const struct wn_experts *a, const experts_room *r, bool out,
                        int64_t N, int64_t K, const float *from, const int32_t *order, float *to) {
  const experts_product x = {r->table, r->tile, out, N, K, from, order, (int)a->top, to};
  WN_LAUNCH(dim3((unsigned)tiles_of(a, EXPERTS_FEW), (unsigned)wn_cuda_parts(N, 8)), 256, 0, wn_cuda_stream(exec),
            experts_few_kernel, x);
}
static void gradient(const struct wn_exec *exec, const struct wn_experts *a, const experts_room *r, bool out, int64_t M,
                     int64_t N, const float *u, const float *v) {
  const experts_gradient x = {r->table, r->count, r->end, out, M, N, u, v};
  const dim3 grid((unsigned)wn_cuda_parts(N, 64), (unsigned)wn_cuda_parts(M, 64), (unsigned)a->E);
  if (exec->precision == WN_BF16)
    WN_LAUNCH(grid, 256, 0, wn_cuda_stream(exec), experts_gradient_kernel<true>, x);
  else
    WN_LAUNCH(grid, 256, 0, wn_cuda_stream(exec), experts_gradient_kernel<false>, x);
}

static wn_status activate(const struct wn_exec *exec, int64_t rows, int64_t F, const void *in, float *hidden) {
  struct wn_act act = {};
  act.kind = WN_ACT_SWIGLU, act.M = rows, act.F = F, act.x = in, act.y = hidden;
  return wn_cuda_act_forward(exec, &act);
}
static wn_status activate_back(const struct wn_exec *exec, int64_t rows, int64_t F, void *in, const float *d_hidden) {
  struct wn_act act = {};
  act.kind = WN_ACT_SWIGLU, act.M = rows, act.F = F, act.x = in, act.dy = d_hidden, act.dx = in;
  return wn_cuda_act_backward(exec, &act);
}

wn_status wn_cuda_experts_forward(const struct wn_exec *exec, const struct wn_experts *a) {
  const int64_t A = a->M * a->top;
  if (a->M == 0) return WN_OK;
  experts_room r = room_of(exec, a, false, exec->scratch);
  const struct wn_exec inner = wn_exec_behind(exec, r.bytes);
  struct wn_exec exact = inner;
  exact.precision = WN_F32;
  const struct wn_linear router = router_of(a);
  WN_TRY(wn_cuda_linear_forward(&exact, &router));
  const bool by_few = few(exec, a, false);
  const experts_route route = {a->M,
                               a->C,
                               (int)a->E,
                               (int)a->top,
                               a->normalize,
                               static_cast<float *>(a->prob),
                               static_cast<float *>(a->weight),
                               a->chosen,
                               static_cast<const float *>(a->x),
                               static_cast<const float *>(a->shared_gate),
                               a->S ? static_cast<float *>(a->shared_factor) : nullptr};
  WN_LAUNCH(warps(a->M), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_choose_kernel, route);
  if (a->balance) {
    const experts_load load = load_of(a, &r);
    WN_LAUNCH((unsigned)a->E, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_load_kernel, load);
    WN_LAUNCH(1, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_balance_kernel, load, a->balance);
  }
  put_places(exec, a, &r, by_few ? EXPERTS_FEW : EXPERTS_MANY);
  put_table(exec, a, &r);
  if (a->S > 0) {
    const struct wn_linear in = shared_in_of(a), out = shared_out_of(a, &r);
    WN_TRY(wn_cuda_linear_forward(&inner, &in));
    WN_TRY(activate(&inner, a->M, a->S, a->shared_in, r.hidden));
    WN_TRY(wn_cuda_linear_forward(&inner, &out));
  }
  float *in = static_cast<float *>(a->in);
  if (by_few) {
    product_few(exec, a, &r, false, 2 * a->F, a->C, static_cast<const float *>(a->x), r.order, in);
    WN_TRY(activate(&inner, A, a->F, in, r.hidden));
    product_few(exec, a, &r, true, a->C, a->F, r.hidden, nullptr, r.out);
  } else {
    gather(exec, a, &r, a->x, r.x);
    product(exec, a, &r, false, false, 2 * a->F, a->C, r.x, in);
    WN_TRY(activate(&inner, A, a->F, in, r.hidden));
    product(exec, a, &r, false, true, a->C, a->F, r.hidden, r.out);
  }
  const experts_sum sum = {a->M,
                           a->C,
                           (int)a->top,
                           a->S ? static_cast<const float *>(a->shared_out) : nullptr,
                           static_cast<const float *>(a->shared_factor),
                           r.out,
                           static_cast<const float *>(a->weight),
                           a->place,
                           static_cast<float *>(a->y),
                           false};
  WN_LAUNCH(wn_cuda_blocks(a->M * a->C), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_sum_kernel, sum);
  return wn_cuda_launched(exec, "experts");
}

// Backward of the shared expert: the first to write dx.
static wn_status shared_backward(const struct wn_exec *exec, const struct wn_experts *a, const experts_room *r) {
  struct wn_linear in = shared_in_of(a), out = shared_out_of(a, r);
  const float *factor = static_cast<const float *>(a->shared_factor);
  WN_TRY(activate(exec, a->M, a->S, a->shared_in, r->hidden));
  WN_TRY(wn_cuda_linear_backward(exec, &out));
  const experts_scale scale = {a->M, a->S, r->hidden, r->d_hidden, factor, nullptr, nullptr};
  WN_LAUNCH(warps(a->M), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_scale_kernel, scale);
  if (a->shared.d_out) {
    out.dx = nullptr, out.dw = a->shared.d_out;
    WN_TRY(wn_cuda_linear_backward(exec, &out));
  }
  WN_TRY(activate_back(exec, a->M, a->S, a->shared_in, r->d_hidden));
  WN_TRY(wn_cuda_linear_backward(exec, &in));
  if (!a->shared_gate) return WN_OK;
  WN_LAUNCH(warps(a->M), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_gate_back_kernel, a->M, a->C,
            static_cast<const float *>(a->dy), static_cast<const float *>(a->shared_out), factor, r->z);
  struct wn_exec exact = *exec;
  exact.precision = WN_F32;
  struct wn_linear gate = {};
  gate.M = a->M, gate.N = 1, gate.K = a->C, gate.x = a->x, gate.ldx = a->C, gate.w = a->shared_gate, gate.dy = r->z;
  gate.lddy = 1, gate.dx = a->dx, gate.lddx = a->C, gate.accumulate_dx = true, gate.dw = a->d_shared_gate;
  return wn_cuda_linear_backward(&exact, &gate);
}

wn_status wn_cuda_experts_backward(const struct wn_exec *exec, const struct wn_experts *a) {
  const int64_t A = a->M * a->top;
  if (a->M == 0) return WN_OK;
  experts_room r = room_of(exec, a, true, exec->scratch);
  const struct wn_exec inner = wn_exec_behind(exec, r.bytes);
  float *in = static_cast<float *>(a->in);
  if (a->S > 0) WN_TRY(shared_backward(&inner, a, &r));
  put_places(exec, a, &r, EXPERTS_MANY);
  put_table(exec, a, &r);
  gather(exec, a, &r, a->x, r.x);
  gather(exec, a, &r, a->dy, r.out);
  WN_TRY(activate(&inner, A, a->F, in, r.hidden));
  product(exec, a, &r, true, true, a->F, a->C, r.out, r.d_hidden);
  const experts_scale scale = {A, a->F, r.hidden, r.d_hidden, static_cast<const float *>(a->weight), r.order, r.dw};
  WN_LAUNCH(warps(A), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_scale_kernel, scale);
  gradient(exec, a, &r, true, a->C, a->F, r.out, r.hidden);
  WN_TRY(activate_back(&inner, A, a->F, in, r.d_hidden));
  gradient(exec, a, &r, false, 2 * a->F, a->C, in, r.x);
  product(exec, a, &r, true, false, a->C, 2 * a->F, in, r.out); // dy is no longer needed
  const experts_sum sum = {a->M,
                           a->C,
                           (int)a->top,
                           nullptr,
                           nullptr,
                           r.out,
                           nullptr,
                           a->place,
                           static_cast<float *>(a->dx),
                           a->S > 0 || a->accumulate_dx};
  WN_LAUNCH(wn_cuda_blocks(a->M * a->C), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_sum_kernel, sum);
  const bool even = a->balance_scale != 0;
  if (even) WN_LAUNCH((unsigned)a->E, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_load_kernel, load_of(a, &r));
  const experts_route_back back = {a->M,
                                   a->T,
                                   (int)a->E,
                                   (int)a->top,
                                   a->normalize,
                                   static_cast<const float *>(a->prob),
                                   static_cast<const float *>(a->weight),
                                   r.dw,
                                   a->chosen,
                                   a->place,
                                   a->row_count,
                                   even ? r.share : nullptr,
                                   r.rows,
                                   a->balance_scale,
                                   r.dlogits};
  WN_LAUNCH(warps(a->M), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), experts_route_back_kernel, back);
  struct wn_exec exact = inner;
  exact.precision = WN_F32;
  struct wn_linear router = router_of(a);
  router.dy = r.dlogits;
  WN_TRY(wn_cuda_linear_backward(&exact, &router));
  return wn_cuda_launched(exec, "experts");
}
