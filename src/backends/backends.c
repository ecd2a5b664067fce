/* The backends of this build, and the libraries that they use. */
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#if WN_HAVE_ONEDNN
#include <dnnl.h>
#endif
#if WN_HAVE_LIBXSMM
#include <libxsmm_version.h>
#endif
#if WN_HAVE_ZLIB
#include <zlib.h>
#endif
#if WN_HAVE_ZSTD
#include <zstd.h>
#endif
#include "backends/backends.h"
#include "backends/cpu/cpu.h"

wn_status wn_backend_of(wn_context *ctx, const struct wn_backend **out) {
  const enum wn_isa isa = ctx->isa;
  *out = NULL;
#define BACKENDS_GET(name)                                                                                             \
  if (strcmp(ctx->backend, #name) == 0) *out = wn_backend_##name##_for(isa);
  WN_BACKENDS(BACKENDS_GET, )
  if (*out) return WN_OK;
  if (strcmp(ctx->backend, "cuda") == 0) return wn_backend_cuda_open(ctx, out);
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "unknown backend \"%s\"", ctx->backend);
}

const struct wn_backend *wn_backend_beside(const wn_context *ctx, const struct wn_backend *backend) {
  if (wn_backend_on_host(backend)) return backend;
  return backend->doubles ? wn_backend_ref() : wn_backend_cpu(ctx->isa);
}

const char *wn_backend_bf16(const wn_context *ctx) {
  if (strcmp(ctx->backend, "cuda") == 0) return "tensor cores";
#if WN_HAS_AVX512
  if (strcmp(ctx->backend, "cpu") == 0 && ctx->isa == WN_ISA_AVX512) {
    if (wn_cpu_has_amx()) return "AMX";
    if (wn_cpu_has_bf16()) return "AVX512_BF16";
  }
#endif
  return "float32";
}

/* "AMX" and "AVX512_VNNI" are for processors whose kernels multiply tiles of rows (packed.h); others, including ARM,
 * multiply panels of floats. */
const char *wn_backend_prompts(const wn_context *ctx) {
  (void)ctx;
#if WN_HAS_KERNELS && defined(__x86_64__)
  if (strcmp(ctx->backend, "cpu") == 0 && ctx->isa == WN_ISA_AVX2) return "AVX2";
#endif
#if WN_HAS_AVX512
  if (strcmp(ctx->backend, "cpu") == 0 && ctx->isa == WN_ISA_AVX512) {
    if (wn_cpu_has_amx_int8()) return "AMX";
    if (__builtin_cpu_supports("avx512vnni")) return "AVX512_VNNI";
  }
#endif
  return "float32";
}

const char *const *wn_backend_names(void) {
#define BACKENDS_NAME(name) #name,
  static const char *const names[] = {WN_BACKENDS(BACKENDS_NAME, ) NULL};
  return names;
}

static char texts[6][64];
static const char *libraries[7];

static void fill_libraries(void) {
  int n = 0;
#if WN_HAVE_ONEDNN
  const dnnl_version_t *dnnl = dnnl_version();
  snprintf(texts[n++], sizeof texts[0], "oneDNN %d.%d.%d", dnnl->major, dnnl->minor, dnnl->patch);
#endif
#if WN_HAVE_LIBXSMM
  snprintf(texts[n++], sizeof texts[0], "libxsmm %s", LIBXSMM_CONFIG_VERSION);
#endif
  snprintf(texts[n++], sizeof texts[0], "jansson %s", jansson_version_str());
  snprintf(texts[n++], sizeof texts[0], "utf8proc %s", utf8proc_version());
#if WN_HAVE_ZLIB
  snprintf(texts[n++], sizeof texts[0], "zlib %s", zlibVersion());
#endif
#if WN_HAVE_ZSTD
  snprintf(texts[n++], sizeof texts[0], "zstd %s", ZSTD_versionString());
#endif
  for (int i = 0; i < n; i++) libraries[i] = texts[i];
}

const char *const *wn_backend_libraries(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, fill_libraries);
  return libraries;
}
