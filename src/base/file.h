/* Files: read-only maps, writes that cannot lose what was there, folders. */
#ifndef WN_BASE_FILE_H
#define WN_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "winnow/context.h"

struct wn_map {
  const uint8_t *data;
  size_t bytes;
}; /* data is NULL for an empty file */
wn_status wn_map_open(wn_context *ctx, const char *path, struct wn_map *out);
void wn_map_close(struct wn_map *map);
/* The bytes at `data` are not needed for a while: the whole pages among them that are part of a map leave memory, and
 * are read from the file when somebody looks at them again. Nothing happens to other memory. */
void wn_map_release(const void *data, size_t bytes);

/* A whole regular file in counted memory with a NUL after it; at most `limit` bytes (WN_ERR_FORMAT beyond). A text that
 * a user names, which may come from a pipe: wn_file_load. */
wn_status wn_file_read(wn_context *ctx, const char *path, size_t limit, char **out, size_t *bytes);

/* A file being written under a temporary name of its own in its folder (.NAME.winnow-...): open, write (as often as
 * needed), then commit (flush, fsync, rename, fsync of the folder) or abort (removed). After a failed write or commit
 * call abort. A file that is replaced keeps its permissions. A symbolic link at the path is followed: what it points at
 * is written, in the folder where that is. Two writers of one file: the second is refused. */
struct wn_writer {
  FILE *f;
  char path[4096], temporary[4096 + 256];
  uint64_t bytes;
};
wn_status wn_writer_open(wn_context *ctx, const char *path, struct wn_writer *w);
wn_status wn_writer_write(wn_context *ctx, struct wn_writer *w, const void *data, size_t bytes);
/* Bytes at the beginning of the file once more, after all else: a header with what is known only now. */
wn_status wn_writer_rewrite(wn_context *ctx, struct wn_writer *w, const void *data, size_t bytes);
wn_status wn_writer_commit(wn_context *ctx, struct wn_writer *w);
void wn_writer_abort(struct wn_writer *w);
wn_status wn_file_write(wn_context *ctx, const char *path, const void *data, size_t bytes); /* open+write+commit */

wn_status wn_make_dirs(wn_context *ctx, const char *path); /* like mkdir -p */
bool wn_path_exists(const char *path);
bool wn_path_is_dir(const char *path);
/* Does "dir/name" exist? */
bool wn_path_has(const char *dir, const char *name);
/* "dir/name" into out; WN_ERR_ARGUMENT when it does not fit. */
wn_status wn_path_join(wn_context *ctx, char *out, size_t out_bytes, const char *dir, const char *name);

#endif
