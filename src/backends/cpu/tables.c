/* Where the cpu backend's tables are; backend.c fills them. */
#include "backends/cpu/cpu.h"

struct wn_backend wn_cpu_tables[3];

#if WN_HAS_KERNELS
const struct wn_product_ops *wn_cpu_product_ops(const struct wn_backend *backend) {
#if WN_HAS_AVX512
  if (backend == &wn_cpu_tables[WN_ISA_AVX512]) return &wn_product_ops_avx512;
#endif
  (void)backend;
  return &wn_product_ops_avx2;
}
#endif
