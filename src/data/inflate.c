/* gzip streams through zlib and zstd streams through libzstd, or plain reading; see inflate.h. */
#include "data/inflate.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/error.h"
#if WN_HAVE_ZLIB
#include <zlib.h>
#endif
#if WN_HAVE_ZSTD
#include <zstd.h>
#endif

enum { INFLATE_MOST = 1 << 24 }; /* in one call */
enum { HEAD = 4, ZSTD_INPUT = 1 << 17 };

struct wn_inflate {
#if WN_HAVE_ZLIB
  gzFile gz; /* passes on what is no gzip data */
#else
  int fd;
  uint64_t done;
#endif
  const char *kind; /* of the data, once `begun` */
  bool begun;
  unsigned char head[HEAD]; /* [held], the first bytes, by which the kind is known, until they are passed on */
  size_t held;
#if WN_HAVE_ZSTD
  ZSTD_DStream *zstd;
  unsigned char in[ZSTD_INPUT]; /* packed data in [at, end) */
  size_t at, end;
  bool within; /* a frame is begun and not ended */
#endif
};

const char *wn_inflate_kind(const unsigned char *data, size_t bytes) {
  if (bytes >= 2 && data[0] == 0x1F && data[1] == 0x8B) return "gzip";
  if (bytes < HEAD) return NULL;
  if (!memcmp(data, "\x28\xB5\x2F\xFD", HEAD)) return "zstd";
  /* A frame that is to be skipped, which some writers put first. */
  return (data[0] & 0xF0) == 0x50 && !memcmp(data + 1, "\x2A\x4D\x18", HEAD - 1) ? "zstd" : NULL;
}

#if WN_HAVE_ZLIB

static bool inflate_begin(struct wn_inflate *s, int fd) {
  s->gz = gzdopen(fd, "rb");
  if (s->gz) gzbuffer(s->gz, 1 << 18);
  return s->gz != NULL;
}

static wn_status inflate_read(struct wn_inflate *s, void *to, size_t room, size_t *n, const char **why) {
  const int got = gzread(s->gz, to, room < INFLATE_MOST ? (unsigned)room : INFLATE_MOST);
  int code = Z_OK;
  const char *text = gzerror(s->gz, &code), *said = strncmp(text, "<fd:", 4) ? NULL : strstr(text, ">: ");
  *n = got < 0 ? 0 : (size_t)got;
  *why = NULL;
  if (got > 0 || (got == 0 && (code == Z_OK || code == Z_STREAM_END))) return WN_OK;
  *why = code == Z_BUF_ERROR ? "the gzip data are truncated"
         : code == Z_ERRNO   ? strerror(errno)
         : said              ? said + 3
                             : text;
  return code == Z_ERRNO ? WN_ERR_IO : WN_ERR_FORMAT;
}

uint64_t wn_inflate_done(const struct wn_inflate *s) {
  const z_off_t at = gzoffset(s->gz);
  return at < 0 ? 0 : (uint64_t)at;
}

static void inflate_end(struct wn_inflate *s) {
  gzclose(s->gz);
}

#else

static bool inflate_begin(struct wn_inflate *s, int fd) {
  s->fd = fd;
  return true;
}

static wn_status inflate_read(struct wn_inflate *s, void *to, size_t room, size_t *n, const char **why) {
  ssize_t got;
  do got = read(s->fd, to, room < INFLATE_MOST ? room : INFLATE_MOST);
  while (got < 0 && errno == EINTR);
  *n = got < 0 ? 0 : (size_t)got;
  *why = got < 0 ? strerror(errno) : NULL;
  s->done += *n;
  return got < 0 ? WN_ERR_IO : WN_OK;
}

uint64_t wn_inflate_done(const struct wn_inflate *s) {
  return s->done;
}

static void inflate_end(struct wn_inflate *s) {
  close(s->fd);
}

#endif

/* Reads the first bytes. zlib has unpacked gzip data by then; without it they are seen here. */
static wn_status inflate_look(struct wn_inflate *s, const char **why) {
  for (size_t got = 1; s->held < HEAD && got; s->held += got)
    WN_TRY(inflate_read(s, s->head + s->held, HEAD - s->held, &got, why));
  s->begun = true;
  s->kind = wn_inflate_kind(s->head, s->held);
#if WN_HAVE_ZLIB
  if (s->kind && !strcmp(s->kind, "gzip")) s->kind = NULL; /* packed twice: passed on as it is */
#endif
  if (!s->kind) return WN_OK;
#if WN_HAVE_ZSTD
  if (!strcmp(s->kind, "zstd")) {
    memcpy(s->in, s->head, s->held);
    s->end = s->held;
    if ((s->zstd = ZSTD_createDStream())) return WN_OK;
    *why = "out of memory";
    return WN_ERR_MEMORY;
  }
#endif
  *why = !strcmp(s->kind, "zstd") ? "these are zstd data, which this build cannot read (WINNOW_ZSTD=OFF)"
                                  : "these are gzip data, which this build cannot read (WINNOW_ZLIB=OFF)";
  return WN_ERR_UNSUPPORTED;
}

#if WN_HAVE_ZSTD
static wn_status inflate_zstd(struct wn_inflate *s, void *to, size_t room, size_t *n, const char **why) {
  ZSTD_outBuffer out = {to, room, 0};
  for (;;) { /* first what the library still holds, then what is read */
    ZSTD_inBuffer in = {s->in, s->end, s->at};
    const size_t left = ZSTD_decompressStream(s->zstd, &out, &in);
    if (ZSTD_isError(left)) {
      *why = ZSTD_getErrorName(left);
      return WN_ERR_FORMAT;
    }
    if (in.pos > s->at || out.pos > 0) s->within = left != 0;
    s->at = in.pos;
    *n = out.pos;
    if (out.pos > 0) return WN_OK;
    if (s->at < s->end) continue;
    s->at = 0;
    WN_TRY(inflate_read(s, s->in, sizeof s->in, &s->end, why));
    if (s->end > 0) continue;
    if (!s->within) return WN_OK;
    *why = "the zstd data are truncated";
    return WN_ERR_FORMAT;
  }
}
#endif

wn_status wn_inflate_read(struct wn_inflate *s, void *to, size_t room, size_t *n, const char **why) {
  *n = 0;
  *why = NULL;
  if (!s->begun) WN_TRY(inflate_look(s, why));
#if WN_HAVE_ZSTD
  if (s->zstd) return inflate_zstd(s, to, room, n, why);
#endif
  if (s->held == 0) return inflate_read(s, to, room, n, why);
  *n = s->held < room ? s->held : room;
  memcpy(to, s->head, *n);
  memmove(s->head, s->head + *n, s->held - *n);
  s->held -= *n;
  return WN_OK;
}

wn_status wn_inflate_open(wn_context *ctx, const char *path, int fd, struct wn_inflate **out) {
  const wn_status status = WN_ALLOC(ctx, "stream", 1, out);
  if (status == WN_OK && inflate_begin(*out, fd)) return WN_OK;
  close(fd);
  if (status != WN_OK) return status;
  wn_free(*out);
  *out = NULL;
  return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", path);
}

void wn_inflate_close(struct wn_inflate *s) {
  if (!s) return;
  inflate_end(s);
#if WN_HAVE_ZSTD
  ZSTD_freeDStream(s->zstd);
#endif
  wn_free(s);
}
