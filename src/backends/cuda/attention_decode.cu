/* Attention of a few rows over a cache: which calls attention/decode.cuh serves; scratch, launches. */
#include <string.h>

#include "backends/cuda/device.cuh"

#include "backends/cuda/attention/decode.cuh"
#include "backends/cuda/attention/floats.cuh"
#include "backends/cuda/attention/run.cuh"
#include "backends/cuda/cuda.h"

namespace wn_cuda {

enum {
  DECODE_TERMS = WN_TERM_SELECTION | WN_TERM_WINDOW | WN_TERM_STRIDED | WN_TERM_SPAN | WN_TERM_EXCLUSIVE |
                 WN_TERM_DOCUMENTS | WN_TERM_EVICTION | WN_TERM_EVICTION_BY_HEAD | WN_TERM_POSITIONS |
                 WN_TERM_POSITIONS_BY_HEAD | WN_TERM_CONSTANT_KEYS | WN_TERM_SOME_HEADS | WN_TERM_HALF | WN_TERM_BF16 |
                 WN_TERM_SINKS | WN_TERM_GATE | WN_TERM_SCORE_MAP | WN_TERM_KEYED
};

bool is_decode(const wn_attention *c) {
  if (c->Tq > DECODE_ROWS || c->D > 128 || wn_call_lacks(c, DECODE_TERMS)) return false;
  if (!maps_are_raw(c, true) || wn_score_keyed(c) > DECODE_KEYED) return false;
  if (c->B * c->H * c->Tq > INT32_MAX / 2 || c->Hkv * ((c->Tq * c->H / c->Hkv + 7) / 8) > 65535) return false;
  if (!c->sel.on) return true;
  return c->Tq == 1 && c->sel.shift && !c->sel.bilinear && !c->sel.F && !(c->sel.mem && c->sel.M);
}

/* Calls that one launch serves. */
static_assert(sizeof(decode_args) + sizeof(decode_calls) <= 4096, "the arguments of a launch");
struct decode_launch {
  decode_args x;
  decode_calls calls;
  const wn_attention *first;
  int count, splits; /* splits: the most of a call */
  int64_t f_numbers; /* likewise, of F; 0: none */
};

template <class T> static void launch_lanes(const decode_launch &l, dim3 grid, int QV, cudaStream_t stream) {
  /* 16 bytes a lane: rows of 32 or 64, 64 or 128, 128 floats */
  const decode_args &x = l.x;
  const int lanes = (x.a.D + T::EACH - 1) / T::EACH;
  const attention_args &a = x.a;
  const bool plain = x.vectors && !a.doc_start && !a.evicted_at && !a.at && !a.span.on && a.window <= 0 &&
                     a.strided <= 0 && !a.map.alibi && !(a.map.cap > 0);
#define WN_DECODE(LANES, N)                                                                                            \
  do {                                                                                                                 \
    if (x.keyed > 0)                                                                                                   \
      WN_LAUNCH(grid, DECODE_THREADS, 0, stream, (attention_decode<T, LANES, N, DECODE_ANY>), x, l.calls);             \
    else if (plain)                                                                                                    \
      WN_LAUNCH(grid, DECODE_THREADS, 0, stream, (attention_decode<T, LANES, N, DECODE_PLAIN>), x, l.calls);           \
    else                                                                                                               \
      WN_LAUNCH(grid, DECODE_THREADS, 0, stream, (attention_decode<T, LANES, N, DECODE_RULES>), x, l.calls);           \
  } while (0)
#define WN_DECODE_LANES(N)                                                                                             \
  do {                                                                                                                 \
    if (lanes <= 8)                                                                                                    \
      WN_DECODE(8, N);                                                                                                 \
    else if (lanes <= 16)                                                                                              \
      WN_DECODE(16, N);                                                                                                \
    else if constexpr (T::EACH == 4)                                                                                   \
      WN_DECODE(32, N);                                                                                                \
  } while (0)
  if (QV == 1)
    WN_DECODE_LANES(1);
  else if (QV == 2)
    WN_DECODE_LANES(2);
  else if (QV == 4)
    WN_DECODE_LANES(4);
  else
    WN_DECODE_LANES(8);
#undef WN_DECODE
#undef WN_DECODE_LANES
}

/* The arguments of a call as a launch of it alone; scratch NULL: measures. Returns the bytes of scratch. */
static size_t decode_call(const wn_attention *c, void *scratch, decode_launch &l) {
  call<floats<32>> base;
  base.arguments(c);
  decode_args &x = l.x;
  decode_own &own = l.calls.own[0];
  x.a = base.a;
  x.a.sel.q = x.a.sel.k = nullptr; /* the keys' */
  const int bytes = c->k_type == WN_GGUF_F16 || c->row_type == WN_BF16 ? 2 : 4, each = 16 / bytes;
  const auto whole = [&](const void *p, const stride &s) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && s.b % each == 0 && s.t % each == 0 && s.h % each == 0;
  };
  x.vectors = x.a.D % each == 0 && whole(c->k, x.a.s_k) && whole(c->v, x.a.s_v);
  x.bf16 = c->row_type == WN_BF16, x.half_v = c->k_type == WN_GGUF_F16;
  for (int64_t n = 0; n < c->maps; n++)
    if (is_keyed(c->map[n].kind->id)) x.keyed_id[x.keyed] = c->map[n].kind->id, x.keyed_map[x.keyed++] = c->map[n];
  x.queries = (int)(c->Tq * (c->H / c->Hkv));
  own.q = c->q, own.k = c->k, own.v = c->v, own.y = c->y, own.at = x.a.at, own.Tk = x.a.Tk;
  own.k_head = x.a.s_k.h, own.v_head = x.a.s_v.h, own.slot_stride = (int)x.a.slot_stride;
  own.f_in = x.a.sel.f_in, own.f_out = static_cast<float *>(c->sel.f_out), own.f_stride = (int)x.a.sel.f_stride;
  /* Keys before all windows are skipped. With a selection they cannot be. */
  if (x.a.window > 0 && !x.a.at && !x.a.sel.on)
    own.first_key = x.a.offset - x.a.window + 1 > 0 ? x.a.offset - x.a.window + 1 : 0;
  /* Depends only on the shape of a sequence, not on the number of sequences, and so do the sums. */
  const int keys = x.a.Tk - own.first_key, step = 64;
  own.chunk = ((keys + DECODE_SPLITS - 1) / DECODE_SPLITS + step - 1) / step * step;
  if (own.chunk < 1) own.chunk = step;
  own.splits = keys > 0 ? (keys + own.chunk - 1) / own.chunk : 1;
  x.selects = x.a.sel.on && (c->sel.f_out || !scratch);
  const int heads = x.a.H / x.a.Hkv;
  x.select_kv = x.a.G > 1 ? -1 : c->sel.head / heads, x.select_query = c->sel.head % heads;
  l.first = c, l.count = 1, l.splits = own.splits;
  l.f_numbers = x.selects ? (int64_t)x.a.B * x.a.G * x.a.Tk : 0;
  room r = {static_cast<char *>(scratch), 0};
  const int most = scratch ? own.splits : DECODE_SPLITS; /* fewer keys may need more splits */
  own.parts = r.take<float>((int64_t)x.a.B * x.a.Hkv * x.queries * most * (x.a.D + 2) + l.f_numbers);
  return r.used;
}

static const char *decode_run(const decode_launch &l, cudaStream_t stream) {
  const decode_args &x = l.x;
  const wn_attention *c = l.first;
  const int QV = x.queries <= 1 ? 1 : x.queries <= 2 ? 2 : x.queries <= 4 ? 4 : 8;
  const dim3 grid((unsigned)l.splits, (unsigned)(x.a.Hkv * ((x.queries + QV - 1) / QV)), (unsigned)(x.a.B * l.count));
  if (x.half_v)
    launch_lanes<decode_half>(l, grid, QV, stream);
  else if (x.bf16)
    launch_lanes<decode_bf16>(l, grid, QV, stream);
  else
    launch_lanes<decode_float>(l, grid, QV, stream);
  const int64_t rows = (int64_t)x.a.B * x.a.Tq * x.a.H, f_blocks = (l.f_numbers + DECODE_THREADS - 1) / DECODE_THREADS;
  const dim3 joins((unsigned)(rows + (f_blocks < 1024 ? f_blocks : 1024)), (unsigned)l.count);
  if (c->sinks.n > 0 || c->gate.on)
    WN_LAUNCH(joins, dim3(DECODE_THREADS), 0, stream, (attention_decode_join<all_terms>), x, l.calls);
  else
    WN_LAUNCH(joins, dim3(DECODE_THREADS), 0, stream, (attention_decode_join<no_terms>), x, l.calls);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

outcome run_decode(pass what, const wn_attention *c, void *scratch, cudaStream_t stream) {
  decode_launch l = {};
  const size_t bytes = decode_call(c, what == FORWARD ? scratch : nullptr, l);
  return what == FORWARD ? outcome{0, decode_run(l, stream)} : outcome{bytes, nullptr};
}

/* Without what is a call's own, as bytes: calls whose are the same can share a launch. */
static decode_args decode_shared(const decode_args &x) {
  decode_args y = x;
  attention_args &a = y.a;
  const bool at = a.at, f_in = a.sel.f_in;
  a.q = a.k = a.v = a.y = nullptr, a.s_q.b = a.s_k.b = a.s_v.b = a.s_y.b = a.s_k.h = a.s_v.h = 0; /* of one sequence */
  a.dy = nullptr, a.s_dy = a.s_y, a.Tk = a.offset = at + 2 * f_in, a.at = nullptr, a.slot_stride = 0;
  a.sel.f_in = nullptr, a.sel.f_stride = 0, a.sel.s_q = a.sel.s_k = {}, a.vectors = false;
  return y;
}
static bool decode_joins(const decode_launch &l, const decode_launch &one) {
  const attention_args &a = one.x.a;
  if (l.count == DECODE_CALLS || a.B != 1 || a.lse || a.exclusive.dot || a.gate.ungated) return false;
  const decode_args x = decode_shared(l.x), y = decode_shared(one.x);
  return memcmp(&x, &y, sizeof x) == 0;
}

const char *run_decode_together(const wn_exec *exec, const wn_attention *calls, int64_t n, cudaStream_t stream) {
  decode_launch l = {};
  const char *error = nullptr;
  for (int64_t i = 0; i < n && !error; i++) {
    if (!is_decode(&calls[i])) continue;
    decode_launch one = {};
    (void)decode_call(&calls[i], exec[i].scratch, one);
    if (l.count > 0 && decode_joins(l, one)) {
      l.calls.own[l.count++] = one.calls.own[0];
      l.splits = one.splits > l.splits ? one.splits : l.splits;
      l.f_numbers = one.f_numbers > l.f_numbers ? one.f_numbers : l.f_numbers;
      continue;
    }
    if (l.count > 0) error = decode_run(l, stream);
    l = one;
  }
  return error || l.count == 0 ? error : decode_run(l, stream);
}

} // namespace wn_cuda
