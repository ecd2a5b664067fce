/* All limits on what files may hold. docs/file-formats.md has the same table; tests/base/test_limits.c compares the
 * two. A file from a stranger decides how much memory reading it takes. The limits leave room above what real files
 * need, and keep the memory below a small multiple of the file's size. */
#ifndef WN_BASE_LIMITS_H
#define WN_BASE_LIMITS_H

#include <stddef.h>

#define WN_KIB ((size_t)1 << 10)
#define WN_MIB ((size_t)1 << 20)
#define WN_GIB ((size_t)1 << 30)

/* JSON, by kind of file: name, bytes, values. A parsed value takes up to 110 bytes per count; a list or an object
 * counts twice. */
#define WN_JSON_KINDS(X)                                                                                               \
  X(CONFIG, "a configuration", WN_MIB, 64 * WN_KIB) /* config.json, recipes, state.json */                             \
  X(LINE, "a line", WN_MIB, 64 * WN_KIB)            /* of log.jsonl */                                                 \
  X(SAMPLE, "a question", 64 * WN_MIB, 64 * WN_KIB) /* a line of questions: its context may be a book */               \
  X(TABLE, "a table", 32 * WN_MIB, 2 * WN_MIB)      /* search, budgets, comparison, index of shards, data.json */      \
  X(TOKENIZER_CONFIG, "a tokenizer's configuration", 16 * WN_MIB, 256 * WN_KIB)                                        \
  X(TOKENIZER, "a tokenizer", 64 * WN_MIB, 4 * WN_MIB)                                                                 \
  X(SCHEMA, "a schema", 256 * WN_KIB, 16 * WN_KIB)     /* of a text to be generated */                                 \
  X(ENTRY, "a tensor's entry", 4 * WN_KIB, 256)        /* in a safetensors header */                                   \
  X(METADATA, "the metadata", 8 * WN_MIB, 64 * WN_KIB) /* likewise */

enum wn_json_kind {
#define WN_JSON_KIND(id, name, bytes, values) WN_JSON_##id,
  WN_JSON_KINDS(WN_JSON_KIND)
#undef WN_JSON_KIND
};

/* Tensor files. */
#define WN_LIMIT_SAFETENSORS_HEADER (32 * WN_MIB)
#define WN_LIMIT_GGUF_TENSORS (256 * WN_KIB)
#define WN_LIMIT_GGUF_KEYS (64 * WN_KIB)
#define WN_LIMIT_TENSOR_NAME (4 * WN_KIB) /* bytes; the limit of keys as well */
#define WN_LIMIT_SHARDS (4 * WN_KIB)
#define WN_LIMIT_CHECKED WN_GIB /* weights up to this size are checked for NaN and infinity without being asked */

/* Tokenizers, and the models and data that use them. */
#define WN_LIMIT_VOCABULARY (1 << 24)           /* tokens */
#define WN_LIMIT_TOKENIZER_MODEL (256 * WN_MIB) /* tokenizer.model */
#define WN_LIMIT_TEMPLATE WN_MIB                /* chat_template.jinja */
#define WN_LIMIT_DECLARED (64 * WN_KIB)         /* end tokens, suppressed tokens, in a list */

/* Corpora. */
#define WN_LIMIT_LINE_VALUES (64 * WN_KIB) /* in a line of JSON; its text is one value */

/* Logs. */
#define WN_LIMIT_LOG WN_GIB

#endif
