/* Instructions of sm_90 in plain C++: mbarriers, bulk and tensor copies, wgmma, and what src/backends/cuda/sm90.cuh
 * wraps. Part of emulate.h; implemented in emulate_sm90.cc.
 *
 * Asynchronous operations are asynchronous here. A copy's destination is NaN from the instruction on. Its data arrive
 * at a moment that the seed chooses, often only when no thread can continue without them; in order 0 always then, and
 * the newest copy first. A wgmma's accumulators are NaN until wait_group covers it. Only then does it read its
 * operands, registers and shared memory, as they are at that time. It sees shared memory as the asynchronous proxy
 * does: what copies wrote, and what threads wrote before a proxy fence. Descriptors and tensor maps are decoded bit by
 * bit: addresses, both offsets, the 128-byte swizzle.
 *
 * Errors of the launch: an invalid or overwritten mbarrier; more arrivals than its count; a copy to an mbarrier that
 * was not fenced; a wgmma after a wait without wgmma.fence; different descriptors in a warp's lanes; warps of a group
 * at different numbers of products; copies or products still pending at the end; more registers (setmaxnreg) than the
 * processor has. */
#ifndef TESTS_CUDA_EMULATE_SM90_H
#define TESTS_CUDA_EMULATE_SM90_H

typedef uint64_t wn_mbarrier;

/* A bf16 tensor [size[3], size[2], size[1], size[0]], contiguous in the innermost index. A box has 64 x rows. */
struct wn_tensor_map {
  const char *base;
  int64_t size[4], stride[4]; /* in bytes */
  int rows;
};

namespace emulate {

void mbarrier_init(site at, wn_mbarrier *b, int count);
void mbarrier_init_fence();
void mbarrier_arrive(site at, wn_mbarrier *b, uint32_t bytes);
void mbarrier_wait(site at, wn_mbarrier *b, uint32_t parity);
void tensor_load(site at, void *to, const wn_tensor_map *m, wn_mbarrier *b, const int (&where)[4]);
void bulk_load(site at, void *to, const void *from, uint32_t bytes, wn_mbarrier *b);
void proxy_fence();
uint32_t shared_address(site at, const void *p);

/* d[64,n] (+)= a[64,16] b[n,16]^T by a warpgroup; here the 16 rows of one warp. */
struct wgmma {
  float *d;
  const uint32_t *a; /* registers, or NULL: descriptor da */
  uint64_t da, db;
  int n;
  bool b_mn_major, add; /* b_mn_major: b is [16,n] */
};
void wgmma_issue(site at, const wgmma &w);
void wgmma_fence(site at);
void wgmma_commit(site at);
void wgmma_wait(site at, int groups);
void registers(site at, int n);

} // namespace emulate

inline void wn_mbarrier_init(wn_mbarrier *b, int count, emulate::site at = emulate::site::here()) {
  emulate::mbarrier_init(at, b, count);
}
inline void wn_mbarrier_init_fence() {
  emulate::mbarrier_init_fence();
}
inline void wn_mbarrier_arrive(wn_mbarrier *b, emulate::site at = emulate::site::here()) {
  emulate::mbarrier_arrive(at, b, 0);
}
inline void wn_mbarrier_expect(wn_mbarrier *b, uint32_t bytes, emulate::site at = emulate::site::here()) {
  emulate::mbarrier_arrive(at, b, bytes);
}
inline void wn_mbarrier_wait(wn_mbarrier *b, uint32_t parity, emulate::site at = emulate::site::here()) {
  emulate::mbarrier_wait(at, b, parity);
}
inline void wn_tensor_load(void *to, const wn_tensor_map *m, wn_mbarrier *b, int x, int y, int z, int w,
                           emulate::site at = emulate::site::here()) {
  const int where[4] = {x, y, z, w};
  emulate::tensor_load(at, to, m, b, where);
}
inline void wn_bulk_load(void *to, const void *from, uint32_t bytes, wn_mbarrier *b,
                         emulate::site at = emulate::site::here()) {
  emulate::bulk_load(at, to, from, bytes, b);
}
inline void wn_proxy_fence() {
  emulate::proxy_fence();
}
inline uint32_t wn_shared_address(const void *p, emulate::site at = emulate::site::here()) {
  return emulate::shared_address(at, p);
}
inline void wn_wgmma_fence(emulate::site at = emulate::site::here()) {
  emulate::wgmma_fence(at);
}
inline void wn_wgmma_commit(emulate::site at = emulate::site::here()) {
  emulate::wgmma_commit(at);
}
template <int GROUPS> void wn_wgmma_wait(emulate::site at = emulate::site::here()) {
  emulate::wgmma_wait(at, GROUPS);
}
template <bool B_MN_MAJOR, int HALF>
void wn_wgmma_ss(float (&d)[HALF], uint64_t a, uint64_t b, bool add, emulate::site at = emulate::site::here()) {
  static_assert(HALF == 32 || HALF == 64, "64 or 128 columns");
  emulate::wgmma_issue(at, {d, nullptr, a, b, 2 * HALF, B_MN_MAJOR, add});
}
template <bool B_MN_MAJOR, int HALF>
void wn_wgmma_rs(float (&d)[HALF], const uint32_t (&a)[4], uint64_t b, bool add,
                 emulate::site at = emulate::site::here()) {
  static_assert(HALF == 32 || HALF == 64, "64 or 128 columns");
  emulate::wgmma_issue(at, {d, a, 0, b, 2 * HALF, B_MN_MAJOR, add});
}
template <int N> void wn_registers_more(emulate::site at = emulate::site::here()) {
  emulate::registers(at, N);
}
template <int N> void wn_registers_fewer(emulate::site at = emulate::site::here()) {
  emulate::registers(at, N);
}

/* The map of bf16 rows [B,T,H,D], with strides in elements. Returns NULL, or why there can be no map. */
const char *wn_tensor_map_rows(wn_tensor_map *m, const void *base, int D, int T, int H, int B, int64_t t, int64_t h,
                               int64_t b, int rows);

#endif
