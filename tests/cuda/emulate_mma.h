/* mma.sync, ldmatrix and movmatrix: the lanes' fragments are assembled into tiles as PTX lays them out, multiplied in
 * double, and distributed again. Part of emulate.h. */
#ifndef TESTS_CUDA_EMULATE_MMA_H
#define TESTS_CUDA_EMULATE_MMA_H

namespace emulate {

/* d[16,8] += a[16,k] b[k,8] with k = 8 or 16. A lane holds k/4 pairs of a and k/8 pairs of b. */
struct product {
  float *d;
  uint32_t a[4], b[2];
};
struct product_kind {
  int k;
  bool half;
};
void product_run(void *const data[32], const void *kind);
/* 8 x 8 matrices of 16-bit elements. Lane 8i + r has the address of row r of matrix i. */
struct load {
  uint32_t *r;
  const void *row;
};
struct load_kind {
  int count;
  bool transposed;
};
void load_run(void *const data[32], const void *kind);
void move_run(void *const data[32], const void *);

inline void multiply(site at, int k, bool half, float *d, const uint32_t *a, const uint32_t *b) {
  const product_kind kind = {k, half};
  product p = {d, {0, 0, 0, 0}, {0, 0}};
  for (int i = 0; i < k / 4; i++) p.a[i] = a[i];
  for (int i = 0; i < k / 8; i++) p.b[i] = b[i];
  warp(at, ~0u, product_run, &kind, &p, true);
}
inline void load_matrices(site at, int count, bool transposed, uint32_t *r, const void *row) {
  const load_kind kind = {count, transposed};
  load l = {r, row};
  warp(at, ~0u, load_run, &kind, &l, true);
}

} // namespace emulate

inline void wn_mma_bf16_k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                            emulate::site at = emulate::site::here()) {
  const uint32_t b[2] = {b0, b1};
  emulate::multiply(at, 16, false, d, a, b);
}
inline void wn_mma_f16_k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                           emulate::site at = emulate::site::here()) {
  const uint32_t b[2] = {b0, b1};
  emulate::multiply(at, 16, true, d, a, b);
}
inline void wn_mma_bf16_k8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0,
                           emulate::site at = emulate::site::here()) {
  const uint32_t a[2] = {a0, a1};
  emulate::multiply(at, 8, false, d, a, &b0);
}
inline void wn_mma_f16_k8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0,
                          emulate::site at = emulate::site::here()) {
  const uint32_t a[2] = {a0, a1};
  emulate::multiply(at, 8, true, d, a, &b0);
}
inline void wn_ldmatrix_x4(uint32_t (&r)[4], const void *row, emulate::site at = emulate::site::here()) {
  emulate::load_matrices(at, 4, false, r, row);
}
inline void wn_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row, emulate::site at = emulate::site::here()) {
  emulate::load_matrices(at, 4, true, r, row);
}
inline void wn_ldmatrix_x2(uint32_t (&r)[2], const void *row, emulate::site at = emulate::site::here()) {
  emulate::load_matrices(at, 2, false, r, row);
}
inline void wn_ldmatrix_x2_trans(uint32_t (&r)[2], const void *row, emulate::site at = emulate::site::here()) {
  emulate::load_matrices(at, 2, true, r, row);
}
inline uint32_t wn_movmatrix(uint32_t x, emulate::site at = emulate::site::here()) {
  emulate::warp(at, ~0u, emulate::move_run, nullptr, &x, true);
  return x;
}

#endif
