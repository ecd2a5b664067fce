/* Bytes of a gzip file or of a pipe, inflated by zlib where they are gzip data, and as they are otherwise. A build
 * without zlib refuses gzip data. */
#ifndef WN_DATA_INFLATE_H
#define WN_DATA_INFLATE_H

#include "base/file.h"

struct wn_inflate;
/* fd is the stream's from here on, closed on failure too. path is borrowed, for messages. */
wn_status wn_inflate_open(wn_context *ctx, const char *path, int fd, struct wn_inflate **out);
/* At most `room` bytes, *n of them; 0 at the end. *why: what went wrong, NULL when nothing did. */
wn_status wn_inflate_read(struct wn_inflate *s, void *to, size_t room, size_t *n, const char **why);
uint64_t wn_inflate_done(const struct wn_inflate *s); /* bytes read so far, before they were inflated */
void wn_inflate_close(struct wn_inflate *s);          /* NULL is allowed */

#endif
