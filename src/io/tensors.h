/* The tensors of a model's files, alike whether they come from a GGUF file or from one or several safetensors files
 * (shards, listed in model.safetensors.index.json). Data stays mapped, in the storage type that the file has. */
#ifndef WN_IO_TENSORS_H
#define WN_IO_TENSORS_H

#include <stdbool.h>
#include "winnow/context.h"
#include "winnow/gguf.h"
#include "winnow/safetensors.h"

struct wn_tensor {
  wn_gguf_tensor t;  /* type F32, F16 or BF16 where it comes from safetensors; valid only when is_weights */
  bool is_weights;   /* false: whole numbers, bytes or doubles */
  const char *dtype; /* as the file spells it */
  const char *file;  /* for messages */
};

struct wn_tensors;
wn_status wn_tensors_open_gguf(wn_context *ctx, const char *path, struct wn_tensors **out);
/* The same on a caller's buffer, borrowed until close. */
wn_status wn_tensors_open_gguf_memory(wn_context *ctx, const char *name, const void *data, size_t bytes,
                                      struct wn_tensors **out);
/* dir/model.safetensors, or the shards of dir/model.safetensors.index.json, which have to lie in the folder and hold
 * exactly what the index says. */
wn_status wn_tensors_open_folder(wn_context *ctx, const char *dir, struct wn_tensors **out);
/* dir/name, one safetensors file. */
wn_status wn_tensors_open_file(wn_context *ctx, const char *dir, const char *name, struct wn_tensors **out);
/* The files' checksums against their headers and, with `data`, their tensors (io/checksum.h); files without pass. */
wn_status wn_tensors_check(wn_context *ctx, const struct wn_tensors *t, bool data);
/* One more, of count floats (copied) that come from elsewhere in the file `file`; both names are copied. */
wn_status wn_tensors_add(wn_context *ctx, struct wn_tensors *tensors, const char *name, const char *file,
                         const float *values, int64_t count);
void wn_tensors_close(struct wn_tensors *tensors); /* NULL is allowed */

/* Where a tensor that is missing should be: the file, or the folder of the shards. */
const char *wn_tensors_where(const struct wn_tensors *tensors);
int wn_tensors_count(const struct wn_tensors *tensors);
const struct wn_tensor *wn_tensors_at(const struct wn_tensors *tensors, int i); /* by name */
int wn_tensors_find(const struct wn_tensors *tensors, const char *name);        /* index, -1 when absent */
/* Elements first..first+count-1 as floats, in the file's order and whatever the tensor's rank: out [count]. Blocks may
 * be touched in part; elements that the tensor does not have are refused. */
wn_status wn_tensor_read(wn_context *ctx, const struct wn_tensor *tensor, int64_t first, int64_t count, float *out);
const wn_gguf *wn_tensors_gguf(const struct wn_tensors *tensors); /* NULL for safetensors */

#endif
