/* Instructions of sm_90 in plain C++: mbarriers, bulk and tensor copies, wgmma, the wrappers of
 * src/backends/cuda/sm90.cuh. Part of emulate.h; what they do is in emulate_sm90.cc.
 *
 * What is asynchronous is so here: a copy's place is NaN from the instruction on, and what it brings arrives at a
 * moment that the seed draws, often when no thread can go on without it; in order 0 always so, the newest first. A
 * wgmma's accumulators are NaN until wait_group has its group; it reads its operands then, registers and shared memory,
 * as they are at that time. It reads shared memory as the asynchronous proxy sees it: what copies brought, and what
 * threads wrote before a proxy fence. Descriptors and tensor maps are taken apart bit by bit: addresses, both offsets,
 * the 128-byte swizzle. Errors of the launch: an mbarrier that is none or is written over, arrivals beyond its count, a
 * copy on an mbarrier that was not fenced, a wgmma after a wait without wgmma.fence, other descriptors in a warp's
 * lanes, warps of a group at different counts of products, copies or products under way at the end, registers
 * (setmaxnreg) beyond the processor's. */
#ifndef TESTS_CUDA_EMULATE_SM90_H
#define TESTS_CUDA_EMULATE_SM90_H

typedef uint64_t wn_mbarrier;

/* A tensor of bf16, [size[3], size[2], size[1], size[0]], the innermost index without gaps; a box has 64 x rows. */
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

/* d[64,n] (+)= a[64,16] b[n,16]^T by a warpgroup, here a warp's 16 rows of it. */
struct wgmma {
  float *d;
  const uint32_t *a; /* registers, or NULL: descriptor da */
  uint64_t da, db;
  int n;
  bool b_mn_major, add; /* b_mn_major: b lies as [16,n] */
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

/* The map of rows of bf16 [B,T,H,D], strides in elements; NULL, or why there is none. */
const char *wn_tensor_map_rows(wn_tensor_map *m, const void *base, int D, int T, int H, int B, int64_t t, int64_t h,
                               int64_t b, int rows);

#endif
