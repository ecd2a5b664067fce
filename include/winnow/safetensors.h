/* winnow: safetensors files. Reading maps the file read-only and checks the whole
 * header (length, JSON, dtypes, shapes, offsets: no overlap, no hole, no overflow)
 * before any tensor can be reached. Writing goes to a temporary file that is
 * synced and renamed. */
#ifndef WINNOW_SAFETENSORS_H
#define WINNOW_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"
#include "winnow/tensor.h"

WN_STABLE_BEGIN

/* The largest number of dimensions of a tensor. */
#define WN_MAX_DIMS 8

/* One tensor of a file. `data` points into the mapped file and is valid while the file is open. It is read-only,
 * little-endian and aligned only as in the file: copy it with memcpy. */
typedef struct wn_safetensors_entry {
  const char *name;
  wn_dtype dtype;
  int ndim;
  int64_t shape[WN_MAX_DIMS];
  const void *data;
  size_t bytes;
} wn_safetensors_entry;

/* A safetensors file, mapped read-only; its header is checked on opening. */
typedef struct wn_safetensors wn_safetensors;

/* Opens a file; WN_ERR_FORMAT names what is wrong with its header. */
wn_status wn_safetensors_open(wn_context *ctx, const char *path, wn_safetensors **out);
/* The same on a caller's buffer, borrowed until close (fuzzing, embedded models); error details name the file
 * `name`. */
wn_status wn_safetensors_open_memory(wn_context *ctx, const char *name, const void *data, size_t bytes,
                                     wn_safetensors **out);
void wn_safetensors_close(wn_safetensors *file); /* NULL is allowed */
int wn_safetensors_count(const wn_safetensors *file);
/* Entry i in file order; NULL when out of range. */
const wn_safetensors_entry *wn_safetensors_at(const wn_safetensors *file, int i);
/* By name; NULL when absent. */
const wn_safetensors_entry *wn_safetensors_find(const wn_safetensors *file, const char *name);
/* A value of "__metadata__", or NULL. Owned by the file. */
const char *wn_safetensors_metadata(const wn_safetensors *file, const char *key);

/* Writes `count` tensors in the given order. metadata: NULL-terminated array of
 * key, value, key, value, ... or NULL. Names and metadata that are too long to be read back (docs/file-formats.md) are
 * refused. A failure leaves an older file of that name untouched. */
wn_status wn_safetensors_write(wn_context *ctx, const char *path, const wn_safetensors_entry *entries, int count,
                               const char *const *metadata);

/* The same with data that is produced during writing: the entries' `data` is not read; `produce` fills the `bytes` of
 * entry i, one entry at a time. */
typedef wn_status (*wn_safetensors_produce_fn)(void *user, int i, void *out, size_t bytes);
wn_status wn_safetensors_write_made(wn_context *ctx, const char *path, const wn_safetensors_entry *entries, int count,
                                    const char *const *metadata, wn_safetensors_produce_fn produce, void *user);

WN_API_END

WN_EXPERIMENTAL_BEGIN

/* Compares header and tensors with the checksums that winnow writes into the metadata (docs/file-formats.md): the first
 * that differs is WN_ERR_FORMAT with the tensor's name. *has (may be NULL): whether the file has checksums; a file
 * without checksums passes. Reads the whole file once. */
wn_status wn_safetensors_verify(wn_context *ctx, const wn_safetensors *file, bool *has);

WN_API_END
#endif
