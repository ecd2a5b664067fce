/* Reads a packed file or a pipe: gzip and zstd data are unpacked, other data is passed on unchanged. A build without
 * zlib refuses gzip data, one without libzstd zstd data. */
#ifndef WN_DATA_INFLATE_H
#define WN_DATA_INFLATE_H

#include "base/file.h"

struct wn_inflate;
/* How data that begin so are packed: "gzip" or "zstd"; NULL: they are not. */
const char *wn_inflate_kind(const unsigned char *data, size_t bytes);
/* The stream takes over fd and closes it, on failure too. path is borrowed, for messages. */
wn_status wn_inflate_open(wn_context *ctx, const char *path, int fd, struct wn_inflate **out);
/* Reads at most `room` bytes; *n: how many, 0 at the end. *why: the error, NULL if there was none. */
wn_status wn_inflate_read(struct wn_inflate *s, void *to, size_t room, size_t *n, const char **why);
uint64_t wn_inflate_done(const struct wn_inflate *s); /* bytes read so far, as they are packed */
void wn_inflate_close(struct wn_inflate *s);          /* NULL is allowed */

#endif
