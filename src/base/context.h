/* The context's inside: what the layers above may read. */
#ifndef WN_BASE_CONTEXT_H
#define WN_BASE_CONTEXT_H

#ifndef __cplusplus
#include <stdatomic.h>
#endif
#include <stdbool.h>
#include <stdint.h>
#include "winnow/context.h"

/* On ARM, WN_ISA_AVX2 stands for NEON, whose kernels are compiled from the same sources: "neon" to users. */
enum wn_isa { WN_ISA_REF = 0, WN_ISA_AVX2 = 1, WN_ISA_AVX512 = 2 };
/* Which of them this processor's family has kernels for. */
#if defined(__x86_64__)
#define WN_HAS_AVX512 1
#define WN_HAS_KERNELS 1
#elif defined(__aarch64__)
#define WN_HAS_AVX512 0
#define WN_HAS_KERNELS 1
#else
#define WN_HAS_AVX512 0
#define WN_HAS_KERNELS 0
#endif

#ifndef __cplusplus /* which has pointers to contexts, no more */
struct wn_context {
  int threads;
  enum wn_isa isa;
  char backend[16]; /* "cpu" or "ref" */
  wn_log_fn log;
  void *log_user;
  double dead_keys;   /* the share that skipped keys may hold; 0: none is skipped */
  int64_t exact_rows; /* of x, from which on products with packed weights take x as it is; 0: the backend's choice */
  atomic_int cancelled;
  struct wn_dist *dist; /* the processes that it works together with (dist/dist.h), or NULL */
  char error[1024];
};
#endif

/* The widest set that this processor has: code compiled for another one must not run, not even to fill a table. */
enum wn_isa wn_cpu_best_isa(void);
/* That one, or the one that WINNOW_ISA asks for. */
wn_status wn_cpu_select_isa(wn_context *ctx, enum wn_isa *out);
const char *wn_isa_name(enum wn_isa isa);
const char *wn_cpu_name(void);            /* static */
const char *const *wn_cpu_features(void); /* static, NULL-terminated */
bool wn_cpu_has_dot(void);                /* ARM: the instructions for sums of products of bytes */
int wn_cpu_count(void);                   /* CPUs in this process's affinity mask and cgroup quota */

#endif
