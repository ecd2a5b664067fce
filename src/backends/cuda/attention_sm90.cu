/* Attention of bf16 rows on sm_90: which calls its kernels serve; chunks of rows, scratch, launches. The kernels are
 * compiled for sm_90a, only if the build asks for it (WN_CUDA_SM90A); otherwise no call is served here. */
#include "backends/cuda/device.cuh"

#include "backends/cuda/attention.h"
#include "backends/cuda/attention/call.cuh"
#include "backends/cuda/beside.cuh"

#if !defined(WN_EMULATED) && !defined(WN_CUDA_SM90A)

bool wn_cuda_attend_sm90(const struct wn_attention *, bool) {
  return false;
}

namespace wn_cuda {

outcome run_sm90(pass, const wn_attention *, void *, int64_t, cudaStream_t) {
  return {0, nullptr};
}

} // namespace wn_cuda

#else

#include "backends/cuda/attention/live.cuh"
#include "backends/cuda/attention/reduce.cuh"
#include "backends/cuda/attention/sm90_backward.cuh"
#include "backends/cuda/attention/sm90_forward.cuh"
#include "backends/cuda/attention/sm90_select.cuh"

namespace wn_cuda {

namespace {

int device_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) return 0;
  return value;
}

bool good_rows(const void *p, const wn_stride &s) { /* can be described by a tensor map */
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && s.b % 8 == 0 && s.t % 8 == 0 && s.h % 8 == 0 && s.b > 0 &&
         s.t > 0 && s.h > 0;
}

} // namespace

} // namespace wn_cuda

bool wn_cuda_attend_sm90(const struct wn_attention *c, bool backward) {
  if (backward && (!c->lse || !c->dy)) return false;
  const uint32_t terms = WN_TERM_SELECTION | WN_TERM_EXCLUSIVE | WN_TERM_DOCUMENTS | WN_TERM_SOME_HEADS | WN_TERM_BF16;
  if (wn_cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
  if (c->row_type != WN_BF16 || (wn_call_terms(c) & ~terms)) return false;
  if ((c->D != 64 && c->D != 128) || c->Tq != c->Tk || c->Tq < 128) return false;
  if (c->sel.on && (!c->sel.relu || !c->sel.shift || c->sel.bilinear || c->sel.strength || c->sel.f_in || c->sel.F ||
                    !(c->scale > 0)))
    return false;
  return wn_cuda::good_rows(c->q, c->s_q) && wn_cuda::good_rows(c->k, c->s_k) && wn_cuda::good_rows(c->v, c->s_v) &&
         wn_cuda::good_rows(c->y, c->s_y) && wn_cuda::good_rows(c->dy, c->s_y) && wn_cuda::good_rows(c->dq, c->s_q) &&
         wn_cuda::good_rows(c->dk, c->s_k) && wn_cuda::good_rows(c->dv, c->s_v);
}

namespace wn_cuda {

namespace {

sm90_stride stride_of(const wn_stride &s) {
  return {s.b, s.t, s.h};
}

/* The arrays that a chunk's kernels have to themselves. */
struct sm90_lane {
  void *F;
  uint4 *X;
  live_found found;
  wn_tensor_map live_k, live_v;
};

/* Chunks alternate between two lanes, each with a stream and its own arrays, so that a chunk's kernels overlap with the
 * end of the neighbouring chunk's. They wait only for data that the neighbour writes:
 *
 *   forward   SELECTED: F at its first row, from the chunk before
 *   backward  READY: the sums of gradients in X, from the chunk after; SUMMED: that chunk's sums of dk and dv
 *
 * Within a lane, the stream keeps everything in order, including the reuse of its arrays by the chunk after next. With
 * one lane (WINNOW_CUDA_OVERLAP=0) both streams are the caller's; launches and arrays are the same, except for the
 * second lane's arrays, so the bits are the same too. */
enum { SELECTED = 0, READY = 0, SUMMED = 1 };

struct sm90_call {
  sm90_args a;
  const wn_attention *c;
  two_streams *streams;
  cudaStream_t stream;        /* the stream of the next launch */
  const char *what = nullptr; /* the launch that failed */
  int windows, rows, processors;
  room scratch;
  float *carries; /* [windows,B,G,padded] F at each chunk's first row */
  int64_t carry;  /* floats in one of them */
  live_keys<uint16_t> keys;
  bool leaves_out; /* dead keys are skipped */
  int lane_count;
  sm90_lane lanes[2];

  void plan(pass goes, const wn_attention *call, int64_t window) {
    c = call;
    a = sm90_args();
    lanes[0] = lanes[1] = sm90_lane();
    a.B = (int)c->B, a.T = (int)c->Tq, a.H = (int)c->H, a.Hkv = (int)c->Hkv;
    a.G = c->sel.on ? (int)wn_selection_groups(c) : 1;
    a.padded = (a.T + 127) / 128 * 128;
    a.scale = (float)c->scale, a.to_log2 = (float)(c->scale * 1.4426950408889634);
    a.doc_start = c->doc_start;
    a.head = c->sel.head, a.protect_first = c->sel.protect_first, a.protect_self = c->sel.protect_self;
    a.f_stride = wn_selection_stride(c);
    a.y = static_cast<uint16_t *>(c->y), a.lse = static_cast<float *>(c->lse);
    a.s_y = stride_of(c->s_y), a.s_q = stride_of(c->s_q), a.s_k = stride_of(c->s_k), a.s_v = stride_of(c->s_v);
    a.exclusive.on = c->exclusive.on, a.exclusive.gate = static_cast<const float *>(c->exclusive.gate);
    a.exclusive.dot = static_cast<float *>(c->exclusive.dot), a.exclusive.v = static_cast<const uint16_t *>(c->v);
    a.tau = (float)(c->sel.mem_tau / c->scale), a.per_tau = (float)(1 / c->sel.mem_tau);
    leaves_out = live_wanted(c);
    /* Forward: two units per multiprocessor. In backward fewer rows would cost more if no keys die. */
    if (window < 1) window = !leaves_out || goes == BACKWARD ? 4096 : (int64_t)a.B * a.H < 32 ? 2048 : 1024;
    rows = (int)((window < a.padded ? window : a.padded) + 255) / 256 * 256;
    if (!c->sel.on || rows > a.padded) rows = a.padded;
    windows = (a.padded + rows - 1) / rows;
    carry = (int64_t)a.B * a.G * a.padded;
    leaves_out = leaves_out && windows > 1;
    keys.plan(c, 128, a.padded);
    lane_count = windows > 1 && beside_wanted() ? 2 : 1;
  }
  int lane_of(int w) const { return w % lane_count; }
  /* Number of blocks of F, for the larger chunk of a lane: the last chunk or the one before. */
  int64_t blocks(int lane) {
    int64_t most = 0;
    for (int w = lane; w < windows; w += lane_count) {
      window_at(w);
      const int64_t n = (int64_t)a.B * a.G * a.row_blocks * a.key_blocks;
      most = n > most ? n : most;
    }
    return most;
  }
  void lay_lanes(int F_bytes, int X_count) {
    if (leaves_out) keys.lay(scratch);
    for (int n = 0; n < lane_count; n++) {
      lanes[n].F = scratch.take<uint8_t>(blocks(n) * F_bytes);
      lanes[n].X = scratch.take<uint4>(blocks(n) * X_count);
      if (leaves_out) lanes[n].found = keys.lay_found(scratch);
    }
  }
  void lay_forward() {
    if (!c->sel.on) return;
    lay_lanes(c->sel.mem ? sm90_block<F_FLOAT>::BYTES : sm90_block<F_HALF>::BYTES, 0);
    carries = scratch.take<float>(windows > 1 ? carry : 0);
  }

  bool failed(const char *text) {
    if (text && !what) what = text;
    return what;
  }
  bool failed(cudaError_t error) { return failed(error == cudaSuccess ? nullptr : cudaGetErrorString(error)); }
  bool maps() {
    const int D = (int)c->D;
    const auto map = [&](wn_tensor_map &m, const void *p, int H, const sm90_stride &s) {
      return failed(wn_tensor_map_rows(&m, p, D, a.T, H, a.B, s.t, s.h, s.b, 64));
    };
    processors = device_attribute(cudaDevAttrMultiProcessorCount);
    return !(map(a.q, c->q, a.H, a.s_q) || map(a.k, c->k, a.Hkv, a.s_k) || map(a.v, c->v, a.Hkv, a.s_v) ||
             (a.exclusive.dy && map(a.dy, a.exclusive.dy, a.H, {(int64_t)a.T * a.H * D, (int64_t)a.H * D, D})) ||
             (c->dy && !a.exclusive.dy && map(a.dy, c->dy, a.H, a.s_y)) || (leaves_out && live_maps()));
  }
  bool live_maps() {
    const int D = (int)c->D;
    const sm90_stride by = {(int64_t)a.padded * a.Hkv * D, (int64_t)a.Hkv * D, D};
    for (sm90_lane *l = lanes; l < lanes + lane_count; l++)
      for (int n = 0; n < 2; n++)
        if (failed(wn_tensor_map_rows(n ? &l->live_v : &l->live_k, l->found.to[n], D, a.padded, a.Hkv, a.B, by.t, by.h,
                                      by.b, 64)))
          return true;
    return false;
  }
  void window_at(int w) {
    a.row_block0 = w * rows / 64;
    a.row_blocks = (a.padded - w * rows < rows ? a.padded - w * rows : rows) / 64;
    a.key_blocks = a.row_block0 + a.row_blocks;
    a.last_rows = w == windows - 1;
  }
  void stream_of(int lane) { stream = (*streams)[lane]; }
  /* Sets up chunk w in a lane. */
  void window_in(int w, int lane) {
    const sm90_lane &l = lanes[lane];
    window_at(w);
    stream_of(lane);
    a.F = l.F, a.X = l.X;
    a.live_at = l.found.at, a.live_k = l.live_k, a.live_v = l.live_v;
  }
  /* Finds the columns of chunk w; F at its first row is `carry_of`. */
  void find_live(int w, int lane, const float *carry_of) {
    a.live = leaves_out && w > 0 ? lanes[lane].found.count : nullptr;
    if (a.live) keys.find(lanes[lane].found, w * rows, carry_of, a.padded, stream);
  }
  void mark(int which, int lane) { failed(streams->mark(which, lane)); }
  void wait(int which, int lane) { failed(streams->wait(which, lane)); }
  void follow(int lane, int other) { failed(streams->follow(lane, other)); }
  dim3 by_keys() const { return dim3((unsigned)(a.row_block0 + a.row_blocks), (unsigned)a.G, (unsigned)a.B); }
  dim3 at_once(int units) const { return dim3((unsigned)(units < processors ? units : processors)); }

  template <int D, sm90_F KIND> void select() {
    if (failed(wn_shared_limit(sm90_select<D, KIND>, sm90_select_room<D>::BYTES))) return;
    WN_LAUNCH(by_keys(), dim3(512), sm90_select_room<D>::BYTES, stream, (sm90_select<D, KIND>), a);
  }
  template <int D, sm90_F KIND> void attend() {
    typedef sm90_forward_room<D, KIND> room;
    if (failed(wn_shared_limit(sm90_forward<D, KIND>, room::BYTES))) return;
    WN_LAUNCH(at_once(a.B * a.H * (a.row_blocks / 2)), dim3(384), room::BYTES, stream, (sm90_forward<D, KIND>), a);
  }
  template <int D, sm90_F KIND> void forward_of() {
    constexpr sm90_F MADE = KIND == F_NONE ? F_FLOAT : KIND;
    float *const f_out = a.f_out;
    const bool apart = leaves_out && f_out; /* F of all keys is needed: computed separately, over all keys */
    stream_of(0);
    if (leaves_out) keys.bound(rows, (windows - 1) * rows, nullptr, stream);
    for (int w = 0; w < windows && !what; w++) {
      const int lane = lane_of(w);
      window_in(w, lane);
      if (w > 0) wait(SELECTED, lane);
      find_live(w, lane, carries);
      if (KIND != F_NONE) {
        a.carry_in = w > 0 ? carries : nullptr, a.carry_out = w < windows - 1 && !apart ? carries : nullptr;
        a.f_out = apart ? nullptr : f_out;
        select<D, MADE>();
      }
      if (apart && !what) {
        const sm90_args own = a;
        a.F = nullptr, a.live = nullptr, a.carry_out = w < windows - 1 ? carries : nullptr, a.f_out = f_out;
        select<D, MADE>();
        a = own;
      }
      mark(SELECTED, lane);
      attend<D, KIND>();
    }
    if (lane_count > 1) follow(0, 1);
  }
  template <int D> const char *forward() {
    two_streams of(stream, lane_count > 1);
    streams = &of;
    lay_forward();
    a.f_out = c->sel.on ? static_cast<float *>(c->sel.f_out) : nullptr;
    a.M = c->sel.on && c->sel.mem ? static_cast<float *>(c->sel.M) : nullptr;
    if (!maps()) return what;
    if (!c->sel.on)
      forward_of<D, F_NONE>();
    else if (a.M)
      forward_of<D, F_FLOAT>();
    else
      forward_of<D, F_HALF>();
    failed(cudaGetLastError());
    return what;
  }

  void lay_backward() {
    a.log2s = scratch.take<float>((int64_t)a.B * a.H * a.padded);
    a.delta = scratch.take<float>((int64_t)a.B * a.H * a.padded);
    if (c->exclusive.on) {
      a.exclusive.dy = scratch.take<uint16_t>((int64_t)a.B * a.T * a.H * c->D);
      a.exclusive.d_dot = scratch.take<float>((int64_t)a.B * a.H * a.padded);
      if (c->exclusive.gate && c->exclusive.dgate) a.exclusive.dgate = scratch.take<float>((int64_t)a.B * a.H * a.T);
    }
    if (!c->sel.on) return;
    lay_lanes(sm90_block<F_HALF>::BYTES, 512);
    carries = scratch.take<float>(windows > 1 ? windows * carry : 0);
    a.back = scratch.take<float>(carry);
    if (windows > 1) a.sums = scratch.take<float>(sums());
  }
  int64_t sums() const { return 2 * (int64_t)a.B * a.padded * a.Hkv * c->D; }
  template <int D, bool SEL> void dq() {
    typedef sm90_rows_room<D, SEL> room;
    if (failed(wn_shared_limit(sm90_rows<D, SEL>, room::BYTES))) return;
    WN_LAUNCH(at_once(a.B * a.H * (a.row_blocks / 2)), dim3(384), room::BYTES, stream, (sm90_rows<D, SEL>), a);
  }
  template <int D> void dF() {
    typedef sm90_dF_room<D> room;
    const int first = a.row_block0 / 2, end = first + a.row_blocks / 2,
              tiles = (end * (end + 1) - first * (first + 1)) / 2;
    if (failed(wn_shared_limit(sm90_dF<D>, room::BYTES))) return;
    WN_LAUNCH(at_once(a.B * a.G * tiles), dim3(384), room::BYTES, stream, sm90_dF<D>, a);
  }
  template <int D> void select_back() {
    if (failed(wn_shared_limit(sm90_select_back<D>, sm90_select_room<D>::BYTES))) return;
    WN_LAUNCH(by_keys(), dim3(512), sm90_select_room<D>::BYTES, stream, sm90_select_back<D>, a);
  }
  template <int D, bool SEL> void dkv() {
    typedef sm90_keys_room<D, SEL> room;
    if (failed(wn_shared_limit(sm90_keys<D, SEL>, room::BYTES))) return;
    WN_LAUNCH(at_once(a.B * a.Hkv * (a.row_block0 + a.row_blocks) / 2), dim3(384), room::BYTES, stream,
              (sm90_keys<D, SEL>), a);
  }
  /* Recomputes what earlier rows have selected, and what dead keys need at the start. */
  template <int D> void before_backward() {
    if (leaves_out) { /* keys that no row of a chunk sees get no sums from it */
      follow(1, 0);
      stream_of(1);
      keys.bound(rows, (windows - 1) * rows, a.lse, stream);
      failed(cudaMemsetAsync(a.back, 0, (size_t)carry * sizeof(float), stream));
      failed(cudaMemsetAsync(a.sums, 0, (size_t)sums() * sizeof(float), stream));
    }
    stream_of(0);
    for (int w = 0; w < windows - 1 && !what; w++) {
      window_at(w);
      a.F = nullptr, a.carry_in = w > 0 ? carries + w * carry : nullptr, a.carry_out = carries + (w + 1) * carry;
      select<D, F_HALF>();
    }
    a.carry_out = nullptr;
    if (leaves_out) follow(0, 1);
    follow(1, 0);
  }
  template <int D> void delta() {
    const int64_t threads = (int64_t)a.B * a.padded * a.H * (D / 8); /* at least 128 rows: whole blocks */
    WN_LAUNCH((unsigned)(threads / 256), 256, 0, stream, sm90_delta<D>, a, static_cast<const uint16_t *>(c->dy));
  }
  template <int D, bool SEL> void backward_of() {
    stream_of(0);
    delta<D>();
    if (windows > 1) before_backward<D>();
    for (int w = windows - 1; w >= 0 && !what; w--) {
      const int lane = lane_of(w);
      window_in(w, lane);
      find_live(w, lane, carries + w * carry);
      a.carry_in = w > 0 ? carries + w * carry : nullptr;
      if (SEL) select<D, F_HALF>();
      if (SEL) dF<D>();
      if (w < windows - 1) wait(READY, lane);
      if (SEL) select_back<D>();
      mark(READY, lane);
      dq<D, SEL>();
      const int beside = w == 0 ? 1 - lane : lane; /* the last dq has no other chunk to overlap with */
      if (w == 0) wait(READY, beside);
      if (w < windows - 1) wait(SUMMED, beside);
      stream_of(beside);
      dkv<D, SEL>();
      mark(SUMMED, beside);
    }
    follow(0, 1);
    stream_of(0);
  }
  template <int D> const char *backward() {
    two_streams of(stream, true);
    streams = &of;
    lay_backward();
    a.dq = static_cast<uint16_t *>(c->dq);
    a.dk = static_cast<uint16_t *>(c->dk), a.dv = static_cast<uint16_t *>(c->dv);
    a.dM = c->sel.on && c->sel.mem ? static_cast<const float *>(c->sel.dM) : nullptr;
    if (!maps()) return what;
    if (c->sel.on)
      backward_of<D, true>();
    else
      backward_of<D, false>();
    if (a.exclusive.dgate)
      WN_LAUNCH(dim3((unsigned)a.H), dim3(256), 0, stream, attention_reduce, a.exclusive.dgate,
                static_cast<float *>(c->exclusive.dgate), 1, a.B, a.H, a.T);
    failed(cudaGetLastError());
    return what;
  }
};

} // namespace

outcome run_sm90(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream) {
  sm90_call x;
  x.scratch = {static_cast<char *>(scratch), 0};
  x.stream = stream;
  x.plan(what == FORWARD || what == MEASURE_FORWARD ? FORWARD : BACKWARD, c, rows);
  if (what == FORWARD) return {0, c->D == 64 ? x.forward<64>() : x.forward<128>()};
  if (what == BACKWARD) return {0, c->D == 64 ? x.backward<64>() : x.backward<128>()};
  if (what == MEASURE_FORWARD)
    x.lay_forward();
  else
    x.lay_backward();
  return {x.scratch.used, nullptr};
}

} // namespace wn_cuda

#endif
