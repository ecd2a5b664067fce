/* The tensors of a model's files, whether from a GGUF file or the parts of one, a safetensors file or several (shards,
 * listed in model.safetensors.index.json). The data stays mapped, in the file's storage type. */
#ifndef WN_IO_TENSORS_H
#define WN_IO_TENSORS_H

#include <stdbool.h>
#include "winnow/context.h"
#include "winnow/gguf.h"
#include "winnow/safetensors.h"

struct wn_tensor {
  wn_gguf_tensor t;  /* type F32, F16 or BF16 if from safetensors; valid only if is_weights */
  bool is_weights;   /* false: integers, bytes or doubles */
  const char *dtype; /* as spelled in the file */
  const char *file;  /* for messages */
};

struct wn_tensors;
/* Opens a GGUF file; of a split model the first part, whose others must lie beside it. */
wn_status wn_tensors_open_gguf(wn_context *ctx, const char *path, struct wn_tensors **out);
/* The same for a caller's buffer with a whole model, borrowed until close. */
wn_status wn_tensors_open_gguf_memory(wn_context *ctx, const char *name, const void *data, size_t bytes,
                                      struct wn_tensors **out);
/* Opens dir/model.safetensors, or the shards of dir/model.safetensors.index.json. The shards must be in the folder and
 * hold exactly what the index says. */
wn_status wn_tensors_open_folder(wn_context *ctx, const char *dir, struct wn_tensors **out);
/* Opens dir/name, one safetensors file. */
wn_status wn_tensors_open_file(wn_context *ctx, const char *dir, const char *name, struct wn_tensors **out);
/* Compares the files' checksums with their headers and, with `data`, their tensors (io/checksum.h); files without any
 * pass. */
wn_status wn_tensors_check(wn_context *ctx, const struct wn_tensors *t, bool data);
/* Adds a vector of count floats (copied) that comes from elsewhere in `file`; both names are copied. */
wn_status wn_tensors_add(wn_context *ctx, struct wn_tensors *tensors, const char *name, const char *file,
                         const float *values, int64_t count);
/* Adds tensor `as` under another name (copied); its data stays where it is. */
wn_status wn_tensors_add_name(wn_context *ctx, struct wn_tensors *tensors, const char *name, int as);
void wn_tensors_close(struct wn_tensors *tensors); /* NULL is allowed */

/* Where a missing tensor should be: the file, or the folder of the shards. */
const char *wn_tensors_where(const struct wn_tensors *tensors);
int wn_tensors_count(const struct wn_tensors *tensors);
const struct wn_tensor *wn_tensors_at(const struct wn_tensors *tensors, int i); /* by name */
int wn_tensors_find(const struct wn_tensors *tensors, const char *name);        /* index, -1 when absent */
/* Reads elements first..first+count-1 as floats, in the file's order, for any rank: out [count]. The range need not be
 * at the bounds of blocks. Elements beyond the tensor are refused. */
wn_status wn_tensor_read(wn_context *ctx, const struct wn_tensor *tensor, int64_t first, int64_t count, float *out);
const wn_gguf *wn_tensors_gguf(const struct wn_tensors *tensors); /* with the metadata; NULL for safetensors */

#endif
