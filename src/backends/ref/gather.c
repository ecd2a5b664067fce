/* Copies rows to other places, as bytes, so that one source serves all types. Calls with few rows, as in every decoding
 * step, use one thread. */
#include "backends/ref/ref.h"

#include <string.h>

#include "io/gguf_types.h"

wn_status wn_ref_gather_forward(const struct wn_exec *exec, const struct wn_gather *a) {
  const int64_t P = a->groups > 0 ? a->groups : 1;
  const size_t row = wn_stored_bytes(a->y_type, exec->dtype, a->D);
  const bool same = a->x_type == a->y_type, whole = same && a->x && !a->index && a->s_x.t == a->D && a->s_y.t == a->D;
  for (int64_t b = 0; b < a->B; b++) {
    for (int64_t h = 0; h < a->H; h++) {
      const int32_t *index = a->index ? a->index + (b * P + h / (a->H / P)) * a->T : NULL;
      const int64_t x = b * a->s_x.b + h * a->s_x.h, y = b * a->s_y.b + h * a->s_y.h;
      for (int64_t t = 0; t < (whole ? 1 : a->T); t++) {
        const char *from =
            (const char *)a->x + wn_stored_bytes(a->x_type, exec->dtype, x + (index ? index[t] : t) * a->s_x.t);
        char *to = (char *)a->y + wn_stored_bytes(a->y_type, exec->dtype, y + t * a->s_y.t);
        if (!a->x)
          memset(to, 0, row);
        else if (same)
          memcpy(to, from, whole ? (size_t)a->T * row : row);
        else
          wn_gguf_store(exec->ctx, a->y_type, (const float *)(const void *)from, a->D, to);
      }
    }
  }
  return WN_OK;
}
