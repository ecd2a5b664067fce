/* Properties of this build and machine. */
#include "backends/backends.h"
#include "base/context.h"
#include "base/error.h"
#include "base/misuse.h"
#include "winnow/version.h"

#ifndef WN_COMMIT
#define WN_COMMIT "unknown"
#endif
#ifndef WN_BUILD_TYPE
#define WN_BUILD_TYPE "unknown"
#endif
#ifndef WN_WITHOUT
#define WN_WITHOUT ""
#endif

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

wn_status wn_build_info_get(wn_context *ctx, wn_build_info *out) {
  WN_CHECK_WORK(WN_POINTER(out));
  *out = (wn_build_info){
      .version = wn_version(),
      .commit = WN_COMMIT,
      .compiler = COMPILER,
      .build_type = WN_BUILD_TYPE,
      .cpu_name = wn_cpu_name(),
      .isa = wn_isa_name(ctx->isa),
      .features = wn_cpu_features(),
      .backends = wn_backend_names(),
      .libraries = wn_backend_libraries(),
      .bfloat16 = wn_backend_bf16(ctx),
      .prompts = wn_backend_prompts(ctx),
      .without = WN_WITHOUT,
  };
  return WN_OK;
}

wn_status wn_device_info_get(wn_context *ctx, int index, wn_device_info *out) {
  WN_CHECK_WORK(WN_POINTER(out));
  *out = (wn_device_info){.name = ""};
  return wn_backend_cuda_device(ctx, index, out);
}
