// Kernels that test the emulation of sm_90 (sm90_kernels.h).
#include "cuda/emulate.h"

#include "backends/cuda/sm90.cuh"
#include "cuda/sm90_kernels.h"

enum { STAGES = 2, A_BYTES = 64 * 128, B_BYTES = 128 * 128, STAGE_BYTES = A_BYTES + B_BYTES };
enum { PLACE_BYTES = STAGES * STAGE_BYTES, SHARED_BYTES = PLACE_BYTES + 2 * STAGES * 8 };

// Threads 0 to 127 multiply; thread 128 loads the tiles.
template <int N> static __global__ void products(const sm90_product p, const wn_tensor_map ma, const wn_tensor_map mb) {
  WN_SHARED_DYNAMIC(uint8_t, raw);
  wn_mbarrier *full = reinterpret_cast<wn_mbarrier *>(raw + PLACE_BYTES), *empty = full + STAGES;
  const int t = (int)threadIdx.x, lane = t % 32, warp = t / 32;
  if (t == 0) {
    for (int s = 0; s < STAGES; s++) {
      wn_mbarrier_init(&full[s], 1);
      wn_mbarrier_init(&empty[s], 4);
    }
    if (p.fault != SM90_NO_INIT_FENCE) wn_mbarrier_init_fence();
  }
  __syncthreads();
  if (t >= 128) {
    if (t > 128) return;
    for (int n = 0; n < p.steps; n++) {
      uint8_t *a = raw + n % STAGES * STAGE_BYTES, *b = a + A_BYTES;
      const int s = n % STAGES, k = n * 64;
      if (p.fault != SM90_NO_EMPTY_WAIT) wn_mbarrier_wait(&empty[s], (n / STAGES & 1) ^ 1);
      const uint32_t bytes = (p.copied ? A_BYTES : 0) + N * 128;
      wn_mbarrier_expect(&full[s], bytes + (p.fault == SM90_MISSING_BYTES ? 16 : 0));
      if (p.copied) wn_tensor_load(a, &ma, &full[s], k, p.row0, 0, 0);
      if (!p.turned) {
        wn_tensor_load(b, &mb, &full[s], k, 0, 0, 0);
      } else {
        for (int half = 0; half < N / 64; half++)
          wn_tensor_load(b + half * 64 * 128, &mb, &full[s], half * 64, k, 0, 0);
      }
      if (p.fault == SM90_MORE_ARRIVALS) wn_mbarrier_arrive(&full[s]), wn_mbarrier_arrive(&full[s]);
    }
    return;
  }
  float d[N / 2];
  for (float &x : d) x = p.start;
  uint32_t registers[4][4];
  for (int n = 0; n < p.steps; n++) {
    const int s = n % STAGES, parity = n / STAGES & 1;
    uint8_t *a = raw + s * STAGE_BYTES, *b = a + A_BYTES;
    if (p.fault != SM90_NO_COPY_WAIT) wn_mbarrier_wait(&full[s], p.fault == SM90_WRONG_PHASE ? parity ^ 1 : parity);
    if (!p.copied) { // rows laid out as by a tensor copy
      for (int i = t; i < 64 * 64; i += 128) {
        const int r = i / 64, c = i % 64, row = p.row0 + r;
        uint16_t *to = reinterpret_cast<uint16_t *>(a + r * 128 + ((c / 8 ^ (r & 7)) << 4));
        to[c % 8] = row < p.rows ? p.a[row * 64 * p.steps + n * 64 + c] : (uint16_t)0;
      }
      if (p.fault != SM90_NO_PROXY_FENCE) wn_proxy_fence();
      wn_barrier_sync(1, 128);
    }
    if (p.from_registers) {
      const int r = warp * 16 + lane % 16;
      for (int k = 0; k < 4; k++) wn_ldmatrix_x4(registers[k], a + r * 128 + (((k * 2 + lane / 16) ^ (r & 7)) << 4));
    }
    if (n == 0 || p.fault != SM90_NO_WGMMA_FENCE) wn_wgmma_fence();
    for (int k = 0; k < 4 && (p.fault != SM90_HALF_GROUP || warp < 2); k++) {
      uint64_t da = wn_descriptor_k(a + k * 32), db = wn_descriptor_k(b + k * 32);
      if (p.turned) db = wn_descriptor_mn(b + k * 2048, p.fault == SM90_WRONG_LEAD ? 4096 : 64 * 128);
      if (p.fault == SM90_WRONG_STRIDE) db = (db & ~(0x3fffull << 32)) | 512ull >> 4 << 32;
      if (p.fault == SM90_WRONG_SWIZZLE) db |= 2ull << 62;
      if (p.from_registers && p.turned)
        wn_wgmma_rs<true>(d, registers[k], db, true);
      else if (p.from_registers)
        wn_wgmma_rs<false>(d, registers[k], db, true);
      else if (p.turned)
        wn_wgmma_ss<true>(d, da, db, true);
      else
        wn_wgmma_ss<false>(d, da, db, true);
    }
    wn_wgmma_commit();
    const bool early = p.fault == SM90_EARLY_RELEASE;
    if (early && lane == 0) wn_mbarrier_arrive(&empty[s]);
    if (early && n + 1 < p.steps) wn_mbarrier_wait(&full[(n + 1) % STAGES], (n + 1) / STAGES & 1);
    if (p.fault != SM90_NO_PRODUCT_WAIT) wn_wgmma_wait<0>();
    if (!early && lane == 0) wn_mbarrier_arrive(&empty[s]);
  }
  for (int i = 0; i < N / 2; i++) {
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    p.d[row * N + column] = d[i];
  }
  if (p.fault == SM90_NO_PRODUCT_WAIT) wn_wgmma_wait<0>();
}

template <int N> static void product_of(const sm90_product *p) {
  wn_tensor_map ma, mb;
  const int K = 64 * p->steps;
  wn_tensor_map_rows(&ma, p->a, K, p->rows, 1, 1, K, K, K, 64);
  if (p->turned)
    wn_tensor_map_rows(&mb, p->b, N, K, 1, 1, N, N, N, 64);
  else
    wn_tensor_map_rows(&mb, p->b, K, N, 1, 1, K, K, K, N);
  wn_shared_limit(products<N>, SHARED_BYTES);
  WN_LAUNCH(1, 160, SHARED_BYTES, nullptr, (products<N>), *p, ma, mb);
}
void kernel_sm90_product(const struct sm90_product *p) {
  if (p->n == 64)
    product_of<64>(p);
  else
    product_of<128>(p);
}

static __global__ void bulk(const float *x, float *y, int n, int offset) {
  WN_SHARED_DYNAMIC(uint8_t, raw);
  wn_mbarrier *full = reinterpret_cast<wn_mbarrier *>(raw);
  if (threadIdx.x == 0) {
    wn_mbarrier_init(full, 1);
    wn_mbarrier_init_fence();
    wn_mbarrier_expect(full, (uint32_t)n * 4);
    wn_bulk_load(raw + 16 + offset, x, (uint32_t)n * 4, full);
  }
  __syncthreads();
  wn_mbarrier_wait(full, 0);
  for (int i = (int)threadIdx.x; i < n; i += 32) y[i] = reinterpret_cast<float *>(raw + 16 + offset)[i];
}
void kernel_sm90_bulk(const float *x, float *y, int n, int offset) {
  WN_LAUNCH(1, 32, (size_t)(16 + n * 4), nullptr, bulk, x, y, n, offset);
}

static __global__ void registers_of(bool more) {
  if (threadIdx.x < 128)
    wn_registers_fewer<24>();
  else if (more)
    wn_registers_more<256>();
  else
    wn_registers_more<240>();
}
void kernel_sm90_registers(bool more) {
  WN_LAUNCH(1, 384, 0, nullptr, registers_of, more);
}
