/* Attention of a few rows over a cache: which calls attention/decode.cuh serves; scratch, launches. */
#include "backends/cuda/device.cuh"

#include "backends/cuda/attention/decode.cuh"
#include "backends/cuda/attention/floats.cuh"
#include "backends/cuda/attention/run.cuh"

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

template <class T> static void launch_lanes(const decode_args &x, dim3 grid, int QV, cudaStream_t stream) {
  /* 16 bytes a lane: rows of 32 or 64, 64 or 128, 128 floats */
  const int lanes = (x.a.D + T::EACH - 1) / T::EACH;
  const attention_args &a = x.a;
  const bool plain = x.vectors && !a.doc_start && !a.evicted_at && !a.at && !a.span.on && a.window <= 0 &&
                     a.strided <= 0 && !a.map.alibi && !(a.map.cap > 0);
#define WN_DECODE(LANES, N)                                                                                            \
  do {                                                                                                                 \
    if (x.keyed > 0)                                                                                                   \
      WN_LAUNCH(grid, DECODE_THREADS, 0, stream, (attention_decode<T, LANES, N, DECODE_ANY>), x);                      \
    else if (plain)                                                                                                    \
      WN_LAUNCH(grid, DECODE_THREADS, 0, stream, (attention_decode<T, LANES, N, DECODE_PLAIN>), x);                    \
    else                                                                                                               \
      WN_LAUNCH(grid, DECODE_THREADS, 0, stream, (attention_decode<T, LANES, N, DECODE_RULES>), x);                    \
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

outcome run_decode(pass what, const wn_attention *c, void *scratch, cudaStream_t stream) {
  call<floats<32>> base;
  base.arguments(c);
  decode_args x = {};
  x.a = base.a;
  const int bytes = c->k_type == WN_GGUF_F16 || c->row_type == WN_BF16 ? 2 : 4, each = 16 / bytes;
  const auto whole = [&](const void *p, const stride &s) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && s.b % each == 0 && s.t % each == 0 && s.h % each == 0;
  };
  x.vectors = x.a.D % each == 0 && whole(c->k, x.a.s_k) && whole(c->v, x.a.s_v);
  for (int64_t n = 0; n < c->maps; n++)
    if (is_keyed(c->map[n].kind->id)) x.keyed_id[x.keyed] = c->map[n].kind->id, x.keyed_map[x.keyed++] = c->map[n];
  x.queries = (int)(c->Tq * (c->H / c->Hkv));
  /* Keys before all windows are skipped. With a selection they cannot be. */
  if (x.a.window > 0 && !x.a.at && !x.a.sel.on)
    x.first_key = x.a.offset - x.a.window + 1 > 0 ? x.a.offset - x.a.window + 1 : 0;
  /* Depends only on the shape of a sequence, not on the number of sequences, and so do the sums. */
  const int keys = x.a.Tk - x.first_key, step = 64;
  x.chunk = ((keys + DECODE_SPLITS - 1) / DECODE_SPLITS + step - 1) / step * step;
  if (x.chunk < 1) x.chunk = step;
  x.splits = keys > 0 ? (keys + x.chunk - 1) / x.chunk : 1;
  room r = {static_cast<char *>(scratch), 0};
  const bool measures = what != FORWARD, selects = x.a.sel.on && (c->sel.f_out || measures);
  if (measures) x.splits = DECODE_SPLITS; /* fewer keys may need more splits */
  const int64_t parts = (int64_t)x.a.B * x.a.Hkv * x.queries * x.splits;
  x.most = r.take<float>(parts), x.sum = r.take<float>(parts), x.part = r.take<float>(parts * x.a.D);
  x.selected = selects ? r.take<float>((int64_t)x.a.B * x.a.G * x.a.Tk) : nullptr;
  if (measures) return {r.used, nullptr};
  const int heads = x.a.H / x.a.Hkv;
  x.select_kv = x.a.G > 1 ? -1 : c->sel.head / heads, x.select_query = c->sel.head % heads;
  const int QV = x.queries <= 1 ? 1 : x.queries <= 2 ? 2 : x.queries <= 4 ? 4 : 8;
  const dim3 grid((unsigned)x.splits, (unsigned)(x.a.Hkv * ((x.queries + QV - 1) / QV)), (unsigned)x.a.B);
  if (c->k_type == WN_GGUF_F16)
    launch_lanes<decode_half>(x, grid, QV, stream);
  else if (c->row_type == WN_BF16)
    launch_lanes<decode_bf16>(x, grid, QV, stream);
  else
    launch_lanes<decode_float>(x, grid, QV, stream);
  const int64_t rows = (int64_t)x.a.B * x.a.Tq * x.a.H, f = (int64_t)x.a.B * x.a.G * x.a.Tk;
  const int64_t f_blocks = selects ? (f + DECODE_THREADS - 1) / DECODE_THREADS : 0;
  const dim3 joins((unsigned)(rows + (f_blocks < 1024 ? f_blocks : 1024)));
  const bool bf16 = c->row_type == WN_BF16;
  float *f_out = static_cast<float *>(c->sel.f_out);
  if (c->sinks.n > 0 || c->gate.on)
    WN_LAUNCH(joins, dim3(DECODE_THREADS), 0, stream, (attention_decode_join<all_terms>), x, bf16,
              c->k_type == WN_GGUF_F16, f_out);
  else
    WN_LAUNCH(joins, dim3(DECODE_THREADS), 0, stream, (attention_decode_join<no_terms>), x, bf16,
              c->k_type == WN_GGUF_F16, f_out);
  const cudaError_t error = cudaGetLastError();
  return {0, error == cudaSuccess ? nullptr : cudaGetErrorString(error)};
}

} // namespace wn_cuda
