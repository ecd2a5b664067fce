/* Checks a SentencePiece model file before SentencePiece reads it. SentencePiece trusts its files: it reads out of
 * bounds if the double array of a normalisation table points outside itself, and long chains of prefixes overrun fixed
 * result arrays. This check walks the protobuf and the double array once and refuses what could do harm. It also
 * collects what encoding in pieces and decoding need to know. */
#ifndef WN_TEXT_SPM_CHECK_H
#define WN_TEXT_SPM_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

#define WN_SPM_USER_DEFINED 64

/* What decoding drops at the beginning of a text. */
enum wn_strip {
  WN_STRIP_NONE,
  WN_STRIP_SPACE, /* one space */
  WN_STRIP_MARKS  /* every U+2581 of the first token (Hugging Face's Metaspace) */
};
/* What is put before a text or a part of one that does not begin with a space (Metaspace). */
enum wn_prepend { WN_PREPEND_NEVER, WN_PREPEND_ALWAYS, WN_PREPEND_FIRST, WN_PREPENDS };
/* A model that comes from a tokenizer.json: a field of the normaliser's specification that only winnow knows. */
enum { WN_SPM_FIELD = 1000 };
struct wn_spm_foreign {
  bool marked; /* a U+2581 in a text is a space; user-defined pieces are cut out of texts first */
  uint8_t prepend, strip;
};

struct wn_spm_info {
  int32_t pieces;
  bool unigram, bpe, words;     /* model kind; none of them: characters */
  bool byte_fallback, charsmap; /* unknown characters become bytes; the text is rewritten by rules */
  int user_defined_count;       /* pieces that always match whole; only the count is right if there are too many */
  int32_t user_defined[WN_SPM_USER_DEFINED];
  bool add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces; /* settings of the normaliser */
  bool newline_inside;  /* a normalisation rule, or a piece of more than one byte, contains a newline */
  char unk_surface[64]; /* what an unknown piece decodes to */
  struct wn_spm_foreign foreign;
};

/* `name` is the file's name in errors. */
wn_status wn_spm_check(wn_context *ctx, const char *name, const void *data, size_t bytes, struct wn_spm_info *info);

#endif
