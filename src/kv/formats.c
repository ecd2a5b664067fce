/* The formats of caches: how keys and values are stored, a row each. */
#include "kv/cache.h"

static const struct {
  const char *name;
  wn_gguf_type k, v;
} cache_formats[WN_CACHE_COUNT] = {
    [WN_CACHE_FLOAT] = {"float", WN_GGUF_F32, WN_GGUF_F32}, [WN_CACHE_HALF] = {"half", WN_GGUF_F16, WN_GGUF_F16},
    [WN_CACHE_AUTO] = {"auto", WN_GGUF_F32, WN_GGUF_F32},   [WN_CACHE_Q8_0] = {"q8_0", WN_GGUF_Q8_0, WN_GGUF_Q8_0},
    [WN_CACHE_Q4_0] = {"q4_0", WN_GGUF_Q8_0, WN_GGUF_Q4_0},
};

const char *wn_cache_format_name(wn_cache_format format) {
  return (unsigned)format < WN_CACHE_COUNT ? cache_formats[format].name : "unknown";
}

void wn_kv_shape_store(struct wn_kv_shape *shape, wn_cache_format format) {
  shape->k_type = cache_formats[format].k;
  shape->v_type = cache_formats[format].v;
}
