/* What is inside a context, for the layers above. */
#ifndef WN_BASE_CONTEXT_H
#define WN_BASE_CONTEXT_H

#ifndef __cplusplus
#include <stdatomic.h>
#endif
#include <stdbool.h>
#include <stdint.h>
#include "winnow/context.h"

/* On ARM, WN_ISA_AVX2 stands for NEON; users see the name "neon". Its kernels are compiled from the same sources. */
enum wn_isa { WN_ISA_REF = 0, WN_ISA_AVX2 = 1, WN_ISA_AVX512 = 2 };
/* Which instruction sets have kernels for this processor's architecture. */
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

/* A model that is being loaded, and who is told how many of its bytes are done (wn_model_load_options.progress). */
struct wn_loading {
  void (*progress)(void *user, uint64_t done, uint64_t total);
  void *user;
  uint64_t done, total;
};

#ifndef __cplusplus /* C++ files only pass pointers to contexts on */
struct wn_context {
  int threads;
  bool exact_threads; /* regions never have fewer (base/crowd.h) */
  enum wn_isa isa;
  char backend[16]; /* "cpu" or "ref" */
  wn_log_fn log;
  void *log_user;
  double dead_keys;   /* the share of a row's attention weight that skipped keys may have; 0: no key is skipped */
  char pre[64];       /* how GGUF tokenizers that do not say it split texts; "": they are refused */
  int64_t exact_rows; /* from so many rows of x on, quantised products do not round x; 0: backend's choice */
  atomic_int cancelled;
  struct wn_dist *dist; /* the processes that train together (dist/dist.h), or NULL */
  char error[1024];
  struct wn_loading *loading; /* NULL: nobody is told */
};

static inline void wn_loading_add(const wn_context *ctx, uint64_t bytes) {
  struct wn_loading *l = ctx->loading;
  if (!l || !bytes || l->done == l->total) return;
  l->done += bytes < l->total - l->done ? bytes : l->total - l->done;
  l->progress(l->user, l->done, l->total);
}
#endif

/* The widest instruction set that this processor has. Code compiled for another set must not run at all, not even to
 * fill a table. */
enum wn_isa wn_cpu_best_isa(void);
/* The best set, or the one that WINNOW_ISA asks for. */
wn_status wn_cpu_select_isa(wn_context *ctx, enum wn_isa *out);
const char *wn_isa_name(enum wn_isa isa);
const char *wn_cpu_name(void);            /* static */
const char *const *wn_cpu_features(void); /* static, NULL-terminated */
bool wn_cpu_has_dot(void);                /* ARM: has the dot-product instructions for bytes */
int wn_cpu_count(void);                   /* CPUs that the affinity mask and the cgroup quota allow */

#endif
