/* Instructions of sm_90: mbarriers, bulk and tensor copies, wgmma, setmaxnreg. Sources that use them are compiled for
 * sm_90a; the tests' emulation (tests/cuda/emulate_sm90.h) has them in plain C++.
 *
 * Tiles of bf16 in shared memory are [rows][64], with rows of 128 bytes and the 128-byte swizzle as tensor copies write
 * it, aligned to 1024 bytes. Heads of 128 are two such tiles, one after the other. */
#ifndef WN_BACKENDS_CUDA_SM90_CUH
#define WN_BACKENDS_CUDA_SM90_CUH

#include "backends/cuda/device.cuh"

#ifndef WN_EMULATED

#include <cuda.h>

typedef uint64_t wn_mbarrier;
typedef CUtensorMap wn_tensor_map;

// ---- mbarriers: a phase ends after `count` arrivals and all announced bytes ----
__device__ __forceinline__ void wn_mbarrier_init(wn_mbarrier *b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(wn_shared_address(b)), "r"(count) : "memory");
}
// After all inits and before the block's barrier: makes them visible to copies.
__device__ __forceinline__ void wn_mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void wn_mbarrier_arrive(wn_mbarrier *b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(wn_shared_address(b)) : "memory");
}
// Arrives and announces `bytes`.
__device__ __forceinline__ void wn_mbarrier_expect(wn_mbarrier *b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(wn_shared_address(b)), "r"(bytes)
               : "memory");
}
// Waits until the phase of this parity has ended; a phase that has not begun counts as ended.
__device__ __forceinline__ void wn_mbarrier_wait(wn_mbarrier *b, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(wn_shared_address(b)), "r"(parity)
                 : "memory");
  } while (!done);
}

// A box of the map from element (x, y, z, w) on; zeros outside the tensor.
__device__ __forceinline__ void wn_tensor_load(void *to, const wn_tensor_map *m, wn_mbarrier *b, int x, int y, int z,
                                               int w) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
               "[%1, {%3,%4,%5,%6}], [%2];" ::"r"(wn_shared_address(to)),
               "l"(m), "r"(wn_shared_address(b)), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}
__device__ __forceinline__ void wn_bulk_load(void *to, const void *from, uint32_t bytes, wn_mbarrier *b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   wn_shared_address(to)),
               "l"(from), "r"(bytes), "r"(wn_shared_address(b))
               : "memory");
}
// Makes this thread's writes to shared memory visible to copies and products (with a barrier, those of other threads
// too).
__device__ __forceinline__ void wn_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- wgmma: products of a warpgroup, with sums in float ----
__device__ __forceinline__ void wn_wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wn_wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int GROUPS> __device__ __forceinline__ void wn_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

// d[64,n] (+)= a[64,16] b[16,n], n 64 or 128: b by descriptor, a by descriptor or from registers (in mma's layout). The
// accumulators of 64 and of 128 columns, for asm: element e of chunk t is row lane / 4 + 8 (e / 2), column
// 8 t + 2 (lane % 4) + e % 2, as in mma.
#define WN_WGMMA_8(d, i)                                                                                               \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),          \
      "+f"(d[i + 7])
#define WN_WGMMA_32(d, i) WN_WGMMA_8(d, i), WN_WGMMA_8(d, i + 8), WN_WGMMA_8(d, i + 16), WN_WGMMA_8(d, i + 24)
#define WN_WGMMA_NAMES_64                                                                                              \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                             \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WN_WGMMA_NAMES_128                                                                                             \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                             \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"                                                   \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                                                   \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
template <bool B_MN_MAJOR>
__device__ __forceinline__ void wn_wgmma_ss(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
               "{" WN_WGMMA_NAMES_64 "}, %32, %33, p, 1, 1, 0, %35;\n}"
               : WN_WGMMA_32(d, 0)
               : "l"(a), "l"(b), "r"((int)add), "n"((int)B_MN_MAJOR));
}
template <bool B_MN_MAJOR>
__device__ __forceinline__ void wn_wgmma_rs(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
               "{" WN_WGMMA_NAMES_64 "}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}"
               : WN_WGMMA_32(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"((int)B_MN_MAJOR));
}
template <bool B_MN_MAJOR>
__device__ __forceinline__ void wn_wgmma_ss(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
               "{" WN_WGMMA_NAMES_128 "}, %64, %65, p, 1, 1, 0, %67;\n}"
               : WN_WGMMA_32(d, 0), WN_WGMMA_32(d, 32)
               : "l"(a), "l"(b), "r"((int)add), "n"((int)B_MN_MAJOR));
}
template <bool B_MN_MAJOR>
__device__ __forceinline__ void wn_wgmma_rs(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
               "{" WN_WGMMA_NAMES_128 "}, {%64,%65,%66,%67}, %68, p, 1, 1, %70;\n}"
               : WN_WGMMA_32(d, 0), WN_WGMMA_32(d, 32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"((int)B_MN_MAJOR));
}
// Changes the registers per thread; all warps of a warpgroup must call it.
template <int N> __device__ __forceinline__ void wn_registers_more() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void wn_registers_fewer() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// The tensor map for bf16 rows [B,T,H,D] with strides in elements; boxes of 64 columns and `rows` rows. NULL, or an
// error text.
static inline const char *wn_tensor_map_rows(wn_tensor_map *m, const void *base, int D, int T, int H, int B, int64_t t,
                                             int64_t h, int64_t b, int rows) {
  static decltype(&cuTensorMapEncodeTiled) encode; // from the driver, which is not linked
  if (!encode) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) return "the driver has no tensor maps";
    encode = reinterpret_cast<decltype(encode)>(found);
  }
  const cuuint64_t sizes[4] = {(cuuint64_t)D, (cuuint64_t)T, (cuuint64_t)H, (cuuint64_t)B},
                   strides[3] = {(cuuint64_t)t * 2, (cuuint64_t)h * 2, (cuuint64_t)b * 2};
  const cuuint32_t box[4] = {64, (cuuint32_t)rows, 1, 1}, ones[4] = {1, 1, 1, 1};
  const CUresult error = encode(m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void *>(base), sizes, strides, box,
                                ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return error == CUDA_SUCCESS ? nullptr : "no tensor map has these strides";
}

#endif // WN_EMULATED

// ---- descriptors of tiles ----

// An operand whose rows run along the summed dimension (K-major): rows of 16 columns from `at` on; groups of 8 rows are
// 1024 bytes apart.
__device__ __forceinline__ uint64_t wn_descriptor_k(const void *at) {
  return (uint64_t)((wn_shared_address(at) & 0x3ffff) >> 4) | 1ull << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
// An operand that is summed over its rows (MN-major): 16 rows from `at` on; `next`: bytes to the next 64 columns.
__device__ __forceinline__ uint64_t wn_descriptor_mn(const void *at, uint32_t next) {
  return (uint64_t)((wn_shared_address(at) & 0x3ffff) >> 4) | (uint64_t)(next >> 4) << 16 |
         (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

#endif
