/* Files: read-only maps, writes that never lose the old file, folders. */
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
}; /* data is NULL if the file is empty */
wn_status wn_map_open(wn_context *ctx, const char *path, struct wn_map *out);
void wn_map_close(struct wn_map *map);
/* The bytes at `data` are not needed for a while: whole pages of a map leave memory and are read from the file again on
 * the next access. Memory that is no map is left alone. */
void wn_map_release(const void *data, size_t bytes);

/* Reads a whole regular file into counted memory and adds a NUL; WN_ERR_FORMAT if it has more than `limit` bytes. For a
 * path that a user gave, which may be a pipe: wn_file_load. */
wn_status wn_file_read(wn_context *ctx, const char *path, size_t limit, char **out, size_t *bytes);

/* Writes a file under a temporary name in the same folder (.NAME.winnow-...): open, write (any number of times), then
 * commit (flush, fsync, rename, fsync of the folder) or abort (removes it). Call abort after a failed write or commit.
 * A replaced file keeps its permissions. A symbolic link is followed: its target is replaced, in the target's folder.
 * If two writers open one file, the second is refused. */
struct wn_writer {
  FILE *f;
  char path[4096], temporary[4096 + 256];
  uint64_t bytes;
};
wn_status wn_writer_open(wn_context *ctx, const char *path, struct wn_writer *w);
/* Goes on with the first `bytes` of the file `kept`, or begins it with 0; the rest of it is cut off. It has that name
 * until commit renames it to `path`; wn_writer_keep closes it and leaves it there. */
wn_status wn_writer_reopen(wn_context *ctx, const char *kept, const char *path, uint64_t bytes, struct wn_writer *w);
wn_status wn_writer_sync(wn_context *ctx, struct wn_writer *w); /* what is written so far is on the disk */
void wn_writer_keep(struct wn_writer *w);
wn_status wn_writer_write(wn_context *ctx, struct wn_writer *w, const void *data, size_t bytes);
/* Overwrites the beginning of the file after the rest is written: for a header whose contents are known only then. */
wn_status wn_writer_rewrite(wn_context *ctx, struct wn_writer *w, const void *data, size_t bytes);
wn_status wn_writer_commit(wn_context *ctx, struct wn_writer *w);
void wn_writer_abort(struct wn_writer *w);
wn_status wn_file_write(wn_context *ctx, const char *path, const void *data, size_t bytes); /* open+write+commit */
/* For a file that is changed in place, open in *fd (wn_open_append): if it has another name as well, a copy replaces it
 * under `path`, and *fd is the copy's. So what a stranger has linked into a folder is not changed. */
wn_status wn_file_own(wn_context *ctx, const char *path, int *fd);

wn_status wn_make_dirs(wn_context *ctx, const char *path); /* like mkdir -p */
bool wn_path_exists(const char *path);
bool wn_path_is_dir(const char *path);
/* Does "dir/name" exist? */
bool wn_path_has(const char *dir, const char *name);
/* "dir/name" into out; WN_ERR_ARGUMENT when it does not fit. */
wn_status wn_path_join(wn_context *ctx, char *out, size_t out_bytes, const char *dir, const char *name);

#endif
