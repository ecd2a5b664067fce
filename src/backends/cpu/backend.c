/* The cpu backend's table: the reference backend's slots, replaced where there are kernels for this instruction set.
 * WN_ISA_REF replaces nothing: plain C on any machine, under the name of the backend that users select. */
#include <pthread.h>
#if WN_HAVE_ONEDNN
#include <dnnl.h>
#endif
#include "backends/cpu/attention/attention.h"
#include "backends/cpu/cpu.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void backend_fill(void) {
  /* Only sets that this processor has: the code that fills a table is compiled for that set, like its kernels. */
  for (int isa = WN_ISA_REF; isa <= (int)wn_cpu_best_isa(); isa++) {
    struct wn_backend *table = &wn_cpu_tables[isa];
    *table = *wn_backend_ref();
    table->name = "cpu";
    table->doubles = false;
#if WN_HAS_KERNELS
    if (isa == WN_ISA_AVX2) wn_cpu_fill_avx2(table);
#if WN_HAS_AVX512
    if (isa == WN_ISA_AVX512) wn_cpu_fill_avx512(table);
#endif
    if (isa <= (WN_HAS_AVX512 ? WN_ISA_AVX512 : WN_ISA_AVX2)) wn_cpu_attention_fill(table, (enum wn_isa)isa);
    if (isa != WN_ISA_REF) {
      table->experts_forward = wn_cpu_experts_forward;
      table->experts_backward = wn_cpu_experts_backward;
      table->experts_scratch = wn_cpu_experts_scratch;
    }
#endif
  }
}

const struct wn_backend *wn_backend_cpu(enum wn_isa isa) {
  pthread_once(&once, backend_fill);
  /* If AVX2 is forced, oneDNN must use it too. oneDNN accepts this only before its first kernel; later it refuses, and
   * a process that asked for both sets (tests) stays on the wider one. */
#if WN_HAVE_ONEDNN
  if (isa == WN_ISA_AVX2) (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
#endif
  return &wn_cpu_tables[isa];
}

const struct wn_backend *wn_backend_cpu_for(enum wn_isa isa) {
  return wn_backend_cpu(isa);
}
