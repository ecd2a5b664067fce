/* Files that are not models, or not what they claim: each must be refused with a message that names the problem, before
 * it does harm. Each is made from a valid model by one change: in a GGUF file's header, metadata or tensors; in a
 * config.json; in safetensors; in an index of shards. */
#include "folder.h"

#include <jansson.h>
#include <math.h>
#include "formats/import.h"
#include "winnow/model.h"

/* ---- the parts of a GGUF file ---- */

enum op {
  NOTHING,
  MAGIC,      /* becomes `text` */
  VERSION,    /* becomes `number` */
  TENSORS,    /* the header's count */
  KEYS,       /* likewise */
  CUT,        /* the file is cut to `number` bytes */
  CUT_END,    /* `number` bytes are cut off its end */
  SET_UINT,   /* the key's value, added where missing */
  SET_FLOAT,  /* likewise; `number` is the float's bits */
  SET_TEXT,   /* likewise */
  SET_TYPE,   /* the key's type number */
  SET_ARRAY,  /* an array of type (number >> 60) and this count */
  SET_NESTED, /* an array of arrays, of arrays, ... */
  SET_LENGTH, /* the stated length of the key's text */
  KEY_LENGTH, /* the stated length of the key itself */
  KEY_NAME,   /* the key is renamed to `text` */
  TWICE,      /* the key occurs twice */
  DROP,       /* the key is removed */
  T_DROP,     /* the tensor is removed */
  T_NAME,     /* is renamed to `text` */
  T_NAME_LENGTH,
  T_ADD, /* a further one, named `text` */
  T_TYPE,
  T_DIMS,    /* the number of dimensions */
  T_ROWS,    /* the outer dimension; the data stay */
  T_COLUMNS, /* the inner one */
  T_OFFSET,
  T_VALUE /* the bits of the first float */
};

struct gguf_case {
  const char *what;
  enum op op;
  const char *where; /* key or tensor */
  uint64_t number;
  const char *text;
  const char *expected; /* part of the message */
};

struct bytes {
  uint8_t *data;
  size_t n, room;
};

static void add(struct bytes *b, const void *data, size_t n) {
  if (b->n + n > b->room) {
    b->room = 2 * (b->n + n) + 4096;
    b->data = realloc(b->data, b->room);
    assert_non_null(b->data);
  }
  if (n) memcpy(b->data + b->n, data, n);
  b->n += n;
}
static void add32(struct bytes *b, uint32_t v) {
  add(b, &v, sizeof v);
}
static void add64(struct bytes *b, uint64_t v) {
  add(b, &v, sizeof v);
}
static void add_text(struct bytes *b, const char *text, uint64_t length) {
  add64(b, length);
  add(b, text, strlen(text));
}

static bool is(const struct gguf_case *c, enum op op, const char *where) {
  return c->op == op && !strcmp(c->where, where);
}

enum { U32 = 4, F32 = 6, TEXT = 8, ARRAY = 9 };
static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static const struct key {
  const char *name;
  uint32_t type;
  uint32_t value; /* bits */
  const char *text;
} keys[] = {
    {"general.architecture", TEXT, 0, "llama"},
    {"general.type", TEXT, 0, "model"},
    {"llama.block_count", U32, 2, NULL},
    {"llama.context_length", U32, 64, NULL},
    {"llama.embedding_length", U32, 32, NULL},
    {"llama.feed_forward_length", U32, 64, NULL},
    {"llama.attention.head_count", U32, 4, NULL},
    {"llama.attention.head_count_kv", U32, 2, NULL},
    {"llama.attention.layer_norm_rms_epsilon", F32, 0x3727c5ac, NULL}, /* 1e-5 */
    {"llama.rope.freq_base", F32, 0x461c4000, NULL},                   /* 10000 */
};
enum { KEY_COUNT = sizeof keys / sizeof *keys };

static bool known_key(const char *name) {
  for (int i = 0; i < KEY_COUNT; i++)
    if (!strcmp(keys[i].name, name)) return true;
  return false;
}

static bool sets(enum op op) {
  return op == SET_UINT || op == SET_FLOAT || op == SET_TEXT || op == SET_TYPE || op == SET_ARRAY || op == SET_NESTED;
}

static void put_key(struct bytes *b, const struct gguf_case *c, const struct key *k) {
  const bool mine = !strcmp(c->where, k->name);
  const char *name = mine && c->op == KEY_NAME ? c->text : k->name;
  add_text(b, name, mine && c->op == KEY_LENGTH ? c->number : strlen(name));
  if (mine && c->op == SET_ARRAY) {
    add32(b, ARRAY), add32(b, (uint32_t)(c->number >> 60)), add64(b, c->number << 4 >> 4);
    return;
  }
  if (mine && c->op == SET_NESTED) {
    add32(b, ARRAY);
    for (int i = 0; i < 1000; i++) add32(b, ARRAY), add64(b, 1);
    return;
  }
  uint32_t type = k->type, value = k->value;
  const char *text = k->text;
  if (mine && c->op == SET_UINT) type = U32, value = (uint32_t)c->number;
  if (mine && c->op == SET_FLOAT) type = F32, value = (uint32_t)c->number;
  if (mine && c->op == SET_TEXT) type = TEXT, text = c->text;
  add32(b, mine && c->op == SET_TYPE ? (uint32_t)c->number : type);
  if (type == TEXT)
    add_text(b, text, mine && c->op == SET_LENGTH ? c->number : strlen(text));
  else
    add32(b, value);
}

static struct tensor {
  char name[64];
  uint32_t type;
  int ndim;
  uint64_t shape[2]; /* outermost first */
  uint64_t offset;
  size_t bytes;
} tensors[64];

static int lay_tensors(const struct gguf_case *c) {
  static const struct {
    const char *name;
    uint64_t rows, columns;
  } layer[] = {{"attn_norm.weight", 0, 32}, {"attn_q.weight", 32, 32},  {"attn_k.weight", 16, 32},
               {"attn_v.weight", 16, 32},   {"ffn_norm.weight", 0, 32}, {"attn_output.weight", 32, 32},
               {"ffn_gate.weight", 64, 32}, {"ffn_up.weight", 64, 32},  {"ffn_down.weight", 32, 64}};
  int n = 0;
  tensors[n++] = (struct tensor){"token_embd.weight", 8, 2, {48, 32}, 0, 0}; /* Q8_0 */
  tensors[n++] = (struct tensor){"output_norm.weight", 0, 1, {32, 0}, 0, 0};
  for (int l = 0; l < 2; l++) {
    for (size_t i = 0; i < sizeof layer / sizeof *layer; i++, n++) {
      const bool vector = layer[i].rows == 0;
      tensors[n] = (struct tensor){"", vector ? 0 : 8, vector ? 1 : 2, {layer[i].rows, layer[i].columns}, 0, 0};
      if (vector) tensors[n].shape[0] = layer[i].columns;
      snprintf(tensors[n].name, sizeof tensors[n].name, "blk.%d.%s", l, layer[i].name);
    }
  }
  if (c->op == T_ADD) {
    tensors[n] = (struct tensor){"", 0, 1, {32, 0}, 0, 0};
    snprintf(tensors[n++].name, sizeof tensors->name, "%s", c->text);
  }
  uint64_t at = 0;
  int kept = 0;
  for (int i = 0; i < n; i++) {
    if (is(c, T_DROP, tensors[i].name)) continue;
    tensors[kept] = tensors[i];
    struct tensor *t = &tensors[kept++];
    const uint64_t weights = t->shape[0] * (t->ndim == 2 ? t->shape[1] : 1);
    t->offset = at;
    t->bytes = t->type == 8 ? (size_t)weights / 32 * 34 : (size_t)weights * 4;
    at += (t->bytes + 31) / 32 * 32;
  }
  return kept;
}

static void put_tensor(struct bytes *b, const struct gguf_case *c, const struct tensor *t) {
  const bool mine = !strcmp(c->where, t->name);
  const char *name = mine && c->op == T_NAME ? c->text : t->name;
  uint64_t rows = t->shape[0], columns = t->shape[t->ndim - 1];
  if (mine && c->op == T_ROWS) rows = c->number;
  if (mine && c->op == T_COLUMNS) columns = c->number;
  add_text(b, name, mine && c->op == T_NAME_LENGTH ? c->number : strlen(name));
  add32(b, mine && c->op == T_DIMS ? (uint32_t)c->number : (uint32_t)t->ndim);
  add64(b, columns);
  if (t->ndim == 2) add64(b, rows);
  add32(b, mine && c->op == T_TYPE ? (uint32_t)c->number : t->type);
  add64(b, mine && c->op == T_OFFSET ? c->number : t->offset);
}

static void put_data(struct bytes *b, const struct gguf_case *c, const struct tensor *t) {
  const uint16_t half = 0x2c00; /* 1/16 */
  for (size_t i = 0; i < t->bytes;) {
    if (t->type == 8) {
      add(b, &half, 2);
      for (int k = 0; k < 32; k++) add(b, &(int8_t){(int8_t)((i + (size_t)k * 7) % 23 - 11)}, 1);
      i += 34;
    } else {
      add32(b, is(c, T_VALUE, t->name) && i == 0 ? (uint32_t)c->number : bits_of(1));
      i += 4;
    }
  }
  while (b->n % 32) add(b, "", 1);
}

static struct bytes make_gguf(const struct gguf_case *c) {
  struct bytes b = {0};
  const int n = lay_tensors(c);
  const bool extra = sets(c->op) && !known_key(c->where);
  add(&b, c->op == MAGIC ? c->text : "GGUF", 4);
  add32(&b, c->op == VERSION ? (uint32_t)c->number : 3);
  add64(&b, c->op == TENSORS ? c->number : (uint64_t)n);
  add64(&b, c->op == KEYS ? c->number : (uint64_t)(KEY_COUNT - (c->op == DROP) + (c->op == TWICE) + extra));
  for (int i = 0; i < KEY_COUNT; i++) {
    if (is(c, DROP, keys[i].name)) continue;
    put_key(&b, c, &keys[i]);
    if (is(c, TWICE, keys[i].name)) put_key(&b, c, &keys[i]);
  }
  if (extra) put_key(&b, c, &(struct key){c->where, U32, 0, NULL});
  for (int i = 0; i < n; i++) put_tensor(&b, c, &tensors[i]);
  while (b.n % 32) add(&b, "", 1);
  for (int i = 0; i < n; i++) put_data(&b, c, &tensors[i]);
  if (c->op == CUT) b.n = (size_t)c->number;
  if (c->op == CUT_END) b.n -= (size_t)c->number;
  return b;
}

/* Like wn_model_load, but from memory of exactly the file's length, so that the sanitizers see a read past the end. */
static wn_status load_gguf(const struct bytes *b) {
  struct wn_import import;
  wn_model *model = NULL;
  uint8_t *copy = malloc(b->n ? b->n : 1);
  if (b->n) memcpy(copy, b->data, b->n);
  wn_status status = wn_import_open_gguf_memory(ctx, "bad.gguf", copy, b->n, &import);
  if (status == WN_OK) status = wn_import_check(ctx, &import);
  if (status == WN_OK) status = wn_import_model(ctx, &import, false, WN_WEIGHTS_AUTO, &model);
  wn_model_destroy(model);
  wn_import_clear(&import);
  free(copy);
  return status;
}

static const struct gguf_case gguf_cases[] = {
    {"empty", CUT, "", 0, NULL, "does not begin with \"GGUF\""},
    {"three bytes", CUT, "", 3, NULL, "does not begin with \"GGUF\""},
    {"another magic", MAGIC, "", 0, "GGML", "does not begin with \"GGUF\""},
    {"version 1", VERSION, "", 1, NULL, "version 1"},
    {"big-endian", VERSION, "", 0x03000000, NULL, "big-endian"},
    {"cut behind the version", CUT, "", 8, NULL, "truncated"},
    {"cut in the metadata", CUT, "", 150, NULL, "do not fit"},
    {"cut in the list of tensors", CUT, "", 900, NULL, "truncated"},
    {"cut in the data", CUT_END, "", 5000, NULL, "are not inside the file"},
    {"one row missing at the end", CUT_END, "", 64, NULL, "are not inside the file"},
    {"2^63 tensors", TENSORS, "", 1ull << 63, NULL, "do not fit"},
    {"2^64-1 keys", KEYS, "", UINT64_MAX, NULL, "do not fit"},
    {"a tensor too many", TENSORS, "", 21, NULL, "bad.gguf"},
    {"a part of a model without a number", SET_UINT, "split.count", 3, NULL,
     "bad.gguf: part of a split model: \"split.no\""},
    {"a key too many", KEYS, "", 11, NULL, "bad.gguf"},
    {"a key of 2^60 bytes", KEY_LENGTH, "llama.block_count", 1ull << 60, NULL, "truncated"},
    {"a key of no bytes", KEY_LENGTH, "llama.block_count", 0, NULL, "0 bytes"},
    {"a text of 2^64-1 bytes", SET_LENGTH, "general.architecture", UINT64_MAX, NULL, "truncated"},
    {"an array of 2^59 texts", SET_ARRAY, "tokenizer.ggml.tokens", 8ull << 60 | 1ull << 59, NULL, "truncated"},
    {"an array of 2^59 numbers", SET_ARRAY, "tokenizer.ggml.scores", 6ull << 60 | 1ull << 59, NULL, "truncated"},
    {"arrays in arrays, a thousand deep", SET_NESTED, "tokenizer.ggml.tokens", 0, NULL, "inside an array"},
    {"a value of type 200", SET_TYPE, "llama.block_count", 200, NULL, "type 200"},
    {"a key twice", TWICE, "llama.block_count", 0, NULL, "is there twice"},
    {"alignment 3", SET_UINT, "general.alignment", 3, NULL, "power of two"},
    {"alignment 0", SET_UINT, "general.alignment", 0, NULL, "power of two"},
    {"alignment 2^31", SET_UINT, "general.alignment", 1u << 31, NULL, "power of two"},
    {"tensor type 99", T_TYPE, "blk.0.attn_q.weight", 99, NULL, "has type 99"},
    {"nine dimensions", T_DIMS, "blk.0.attn_q.weight", 9, NULL, "dimensions"},
    {"no dimension", T_DIMS, "blk.0.attn_q.weight", 0, NULL, "dimensions"},
    {"no rows", T_ROWS, "blk.0.attn_q.weight", 0, NULL, "dimension 0 is 0"},
    {"2^62 rows", T_ROWS, "blk.0.attn_q.weight", 1ull << 62, NULL, "larger than can be"},
    {"2^64-32 columns", T_COLUMNS, "blk.0.attn_q.weight", UINT64_MAX - 31, NULL, "dimension 1"},
    {"rows that are no whole blocks", T_COLUMNS, "blk.0.attn_q.weight", 40, NULL, "whole blocks"},
    {"unaligned", T_OFFSET, "blk.0.attn_q.weight", 17, NULL, "not a multiple of"},
    {"beyond the end", T_OFFSET, "blk.0.attn_q.weight", 1 << 20, NULL, "are not inside the file"},
    {"an offset that overflows", T_OFFSET, "blk.0.attn_q.weight", UINT64_MAX - 31, NULL, "are not inside the file"},
    {"over another", T_OFFSET, "blk.0.attn_q.weight", 0, NULL, "overlap"},
    {"a tensor twice", T_NAME, "blk.1.attn_q.weight", 0, "blk.0.attn_q.weight", "is there twice"},
    {"a tensor without a name", T_NAME, "blk.0.attn_q.weight", 0, "", "0 bytes"},
    {"a name of 2^63 bytes", T_NAME_LENGTH, "blk.0.attn_q.weight", 1ull << 63, NULL, "truncated"},
    {"no architecture", DROP, "general.architecture", 0, NULL, "\"general.architecture\" is missing"},
    {"a number for the architecture", SET_UINT, "general.architecture", 7, NULL, "not a text"},
    {"an unknown architecture", SET_TEXT, "general.architecture", 0, "phi2",
     "\"phi2\"; gemma2, gemma3, gpt2, granite, llama"},
    {"an adapter", SET_TEXT, "general.type", 0, "adapter", "a model is expected"},
    {"no number of blocks", DROP, "llama.block_count", 0, NULL, "\"llama.block_count\" is missing"},
    {"a text for the number of blocks", SET_TEXT, "llama.block_count", 0, "2", "not a whole number"},
    {"no blocks", SET_UINT, "llama.block_count", 0, NULL, "layers"},
    {"4 billion blocks", SET_UINT, "llama.block_count", UINT32_MAX, NULL, "layers"},
    {"a block too few", SET_UINT, "llama.block_count", 1, NULL, "is not part of the model"},
    {"a block too many", SET_UINT, "llama.block_count", 3, NULL, "blk.2.attn_norm.weight is missing"},
    {"no heads", SET_UINT, "llama.attention.head_count", 0, NULL, "heads"},
    {"three heads", SET_UINT, "llama.attention.head_count", 3, NULL, "heads"},
    {"three key-value heads", SET_UINT, "llama.attention.head_count_kv", 3, NULL, "kv_heads"},
    {"heads of 4 billion", SET_UINT, "llama.attention.key_length", UINT32_MAX, NULL, "head_size"},
    {"values of another size", SET_UINT, "llama.attention.value_length", 16, NULL, "value_length"},
    {"another width", SET_UINT, "llama.embedding_length", 64, NULL, "has shape"},
    {"no width", SET_UINT, "llama.embedding_length", 0, NULL, "width"},
    {"another inner width", SET_UINT, "llama.feed_forward_length", 32, NULL, "has shape"},
    {"no inner width", SET_UINT, "llama.feed_forward_length", 0, NULL, "feed_forward_length"},
    {"no context", SET_UINT, "llama.context_length", 0, NULL, "context_length"},
    {"a context of 4 billion", SET_UINT, "llama.context_length", UINT32_MAX, NULL, "context"},
    {"another vocabulary", SET_UINT, "llama.vocab_size", 49, NULL, "vocab_size"},
    {"an epsilon that is no number", SET_FLOAT, "llama.attention.layer_norm_rms_epsilon", 0x7fc00000, NULL, "norm_eps"},
    {"a negative epsilon", SET_FLOAT, "llama.attention.layer_norm_rms_epsilon", 0xbf800000, NULL, "norm_eps"},
    {"a base of 0", SET_FLOAT, "llama.rope.freq_base", 0, NULL, "rope_theta"},
    {"an infinite base", SET_FLOAT, "llama.rope.freq_base", 0x7f800000, NULL, "rope_theta"},
    {"an odd number of turned elements", SET_UINT, "llama.rope.dimension_count", 7, NULL, "rope_size"},
    {"more turned elements than there are", SET_UINT, "llama.rope.dimension_count", 16, NULL, "rope_size"},
    {"a rotary scaling that is not known", SET_TEXT, "llama.rope.scaling.type", 0, "longrope", "longrope"},
    {"experts of which none is taken", SET_UINT, "llama.expert_count", 8, NULL, "experts.active is 0"},
    {"a key that is not known", SET_FLOAT, "llama.final_logit_softcapping", 0x41f00000, NULL, "is not known"},
    {"no embedding", T_DROP, "token_embd.weight", 0, NULL, "token_embd.weight is missing"},
    {"no norm", T_DROP, "blk.1.ffn_norm.weight", 0, NULL, "blk.1.ffn_norm.weight is missing"},
    {"an extra tensor", T_ADD, "", 0, "blk.0.ffn_gate_inp.weight", "is not part of the model"},
    {"factors of another length", T_ADD, "", 0, "rope_freqs.weight", "has shape"},
    {"a bias alone", T_ADD, "", 0, "blk.0.attn_q.bias", "is missing"},
    {"a gain that is no number", T_VALUE, "blk.0.attn_norm.weight", 0x7fc00000, NULL, "not finite"},
    {"an infinite gain", T_VALUE, "output_norm.weight", 0x7f800000, NULL, "not finite"},
};

static void gguf_files(void **state) {
  (void)state;
  const struct gguf_case good = {"the model itself", NOTHING, "", 0, NULL, NULL};
  struct bytes b = make_gguf(&good);
  assert_ok(ctx, load_gguf(&b));
  free(b.data);
  for (size_t i = 0; i < sizeof gguf_cases / sizeof *gguf_cases; i++) {
    const struct gguf_case *c = &gguf_cases[i];
    b = make_gguf(c);
    const wn_status status = load_gguf(&b);
    if (status == WN_OK || !strstr(wn_context_error(ctx), c->expected))
      fail_msg("%s: expected a refusal with \"%s\", found %s: %s", c->what, c->expected, wn_status_name(status),
               status == WN_OK ? "" : wn_context_error(ctx));
    if (strchr(wn_context_error(ctx), '\n')) fail_msg("%s: more than a line", c->what);
    free(b.data);
  }
}

/* Every prefix of the header, and every change of a single byte in it: anything may come of it, but no crash. */
static void gguf_bytes(void **state) {
  (void)state;
  const struct gguf_case good = {"the model itself", NOTHING, "", 0, NULL, NULL};
  struct bytes b = make_gguf(&good);
  for (size_t n = 0; n < 1800; n += 13) {
    const struct bytes part = {b.data, n, 0};
    assert_int_not_equal(load_gguf(&part), WN_OK);
  }
  for (size_t at = 0; at < 1800; at += 7) {
    const uint8_t was = b.data[at];
    for (int bit = 0; bit < 8; bit += 3) {
      b.data[at] = was ^ (uint8_t)(1 << bit);
      if (load_gguf(&b) != WN_OK) assert_true(*wn_context_error(ctx));
    }
    b.data[at] = was;
  }
  free(b.data);
}

/* ---- Hugging Face folders ---- */

static void place_in(char out[1024], const char *dir, const char *name) {
  assert_true(snprintf(out, 1024, "%s/%s", dir, name) < 1024);
}

static void copy_golden(const char *from, const char *name, const char *dir) {
  char path[1024], *data = NULL;
  assert_true(snprintf(path, sizeof path, "%s/golden/hf/%s/%s", WN_TEST_DIR, from, name) < (int)sizeof path);
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  fseek(f, 0, SEEK_END);
  const size_t n = (size_t)ftell(f);
  rewind(f);
  data = malloc(n);
  assert_int_equal(fread(data, 1, n, f), n);
  fclose(f);
  place_in(path, dir, name);
  put_file(path, data, n);
  free(data);
}

static void put_text_file(const char *dir, const char *name, const char *text) {
  char path[1024];
  place_in(path, dir, name);
  put_file(path, text, strlen(text));
}

static void refused(const char *what, const char *path, const char *expected) {
  wn_model *model = NULL;
  const wn_status status = wn_model_load(ctx, path, NULL, &model);
  if (status == WN_OK || !strstr(wn_context_error(ctx), expected))
    fail_msg("%s: expected a refusal with \"%s\", found %s: %s", what, expected, wn_status_name(status),
             status == WN_OK ? "" : wn_context_error(ctx));
  assert_null(model);
}

/* A change of config.json: a key's new value (JSON; NULL removes the key), and what the message must contain. */
static const struct config_case {
  const char *key, *value, *expected;
} llama_cases[] = {
    {"model_type", NULL, "\"model_type\" is \"\""},
    {"model_type", "\"mamba\"", "\"mamba\"; gemma2, gemma3_text, gpt2, granite, llama"},
    {"model_type", "7", "\"model_type\" is not a string"},
    {"vocab_size", NULL, "\"vocab_size\" is missing"},
    {"vocab_size", "-1", "\"vocab_size\""},
    {"vocab_size", "47", "has shape"},
    {"vocab_size", "99999999999", "vocab_size"},
    {"hidden_size", "\"32\"", "\"hidden_size\" is not a whole number"},
    {"hidden_size", "3.5", "\"hidden_size\" is not a whole number"},
    {"hidden_size", "0", "width"},
    {"num_hidden_layers", NULL, "\"num_hidden_layers\" is missing"},
    {"num_hidden_layers", "4000", "model.layers.2.input_layernorm.weight is missing"},
    {"num_hidden_layers", "1000000000", "layers"},
    {"num_attention_heads", "0", "heads"},
    {"num_attention_heads", "5", "heads"},
    {"num_key_value_heads", "3", "kv_heads"},
    {"head_dim", "7", "head_size"},
    {"intermediate_size", "41", "has shape"},
    {"max_position_embeddings", "0", "max_position_embeddings"},
    {"max_position_embeddings", "9000000000000000000", "context"},
    {"rms_norm_eps", "-1", "norm_eps"},
    {"rms_norm_eps", "\"small\"", "\"rms_norm_eps\" is not a number"},
    {"hidden_act", "\"gelu\"", "\"hidden_act\" is \"gelu\"; only silu"},
    {"attention_bias", "true", "self_attn.q_proj.bias is missing"},
    {"mlp_bias", "true", "\"mlp_bias\" is true and \"attention_bias\" false"},
    {"tie_word_embeddings", "true", "is not the embedding"},
    {"tie_word_embeddings", "1", "not true or false"},
    {"quantization_config", "{\"quant_method\":\"gptq\"}", "\"quantization_config\""},
    {"rope_scaling", "[1]", "not an object"},
    {"rope_scaling", "{\"rope_type\":\"longrope\",\"factor\":2}", "\"longrope\""},
    {"rope_scaling", "{\"rope_type\":\"linear\"}", "no \"factor\""},
    {"rope_scaling", "{\"rope_type\":\"linear\",\"factor\":0}", "no \"factor\""},
    {"rope_scaling", "{\"rope_type\":\"linear\",\"factor\":-3}", "rope_scaling.factor"},
    {"rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8}", "low_freq_factor"},
    {"rope_scaling",
     "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4,"
     "\"original_max_position_embeddings\":16}",
     "high_freq_factor"},
    {"rope_scaling", "{\"rope_type\":\"default\",\"mrope_section\":[1,1,2]}", "differs between"},
    {"rope_theta", "0.5", "rope_theta"},
    {"partial_rotary_factor", "0.5", "partial_rotary_factor"},
    {"is_encoder_decoder", "true", "is_encoder_decoder"},
    {"retention_gate", "1", "\"retention_gate\" is not a string"},
    {"retention_gate", "\"rg2\"", "\"retention_gate\" is \"rg2\""},
    {"retention_gate", "\"rg\"", "self_attn.retention_gate.linear1.weight is missing"},
    {"g_expand", "\"4\"", "\"g_expand\" is not a number"},
    {"g_expand", "1e6", "write.hidden"},
    {"g_expand", "2", "self_attn.g_predictors.pre_key_norm.weight is missing"},
};

/* Writes the golden's config.json with the change. */
static void change_config(const char *dir, const struct config_case *c) {
  char path[1024];
  place_in(path, dir, "config.json");
  json_t *o = json_load_file(path, 0, NULL);
  assert_non_null(o);
  if (!strcmp(c->key, "rope_theta") || !strcmp(c->key, "rope_scaling")) json_object_del(o, "rope_parameters");
  if (c->value)
    json_object_set_new(o, c->key, json_loads(c->value, JSON_DECODE_ANY, NULL));
  else
    json_object_del(o, c->key);
  assert_int_equal(json_dump_file(o, path, 0), 0);
  json_decref(o);
}

static void hf_configs(void **state) {
  (void)state;
  wn_model *model;
  copy_golden("llama", "config.json", folder);
  copy_golden("llama", "model.safetensors", folder);
  assert_ok(ctx, wn_model_load(ctx, folder, NULL, &model));
  wn_model_destroy(model);
  for (size_t i = 0; i < sizeof llama_cases / sizeof *llama_cases; i++) {
    char what[200];
    copy_golden("llama", "config.json", folder);
    change_config(folder, &llama_cases[i]);
    snprintf(what, sizeof what, "%s %.100s", llama_cases[i].key, llama_cases[i].value ? llama_cases[i].value : "gone");
    refused(what, folder, llama_cases[i].expected);
  }
  static const struct {
    const char *what, *text, *expected;
  } texts[] = {
      {"no JSON", "model", "config.json:1"},
      {"cut", "{\"model_type\": \"llama\", ", "config.json:1"},
      {"a list", "[{\"model_type\": \"llama\"}]", "config.json"},
      {"nothing", "", "config.json"},
      {"a key twice", "{\"model_type\": \"llama\", \"model_type\": \"llama\"}", "duplicate"},
      {"a NUL", "{\"model_type\": \"lla\\u0000ma\"}", "config.json"},
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    put_text_file(folder, "config.json", texts[i].text);
    refused(texts[i].what, folder, texts[i].expected);
  }
  char *deep = malloc(100001);
  memset(deep, '[', 100000);
  deep[100000] = 0;
  put_text_file(folder, "config.json", deep);
  refused("a hundred thousand brackets", folder, "config.json");
  free(deep);
  char path[1024];
  place_in(path, folder, "config.json");
  remove(path);
  refused("no config.json", folder, "config.json");
  place_in(path, folder, "nowhere");
  refused("nothing there", path, "nowhere");
}

static void other_configs(void **state) {
  (void)state;
  static const struct {
    const char *model;
    struct config_case c;
  } cases[] = {
      {"qwen2_moe", {"decoder_sparse_step", "2", "only experts in every layer"}},
      {"qwen2_moe", {"mlp_only_layers", "[1]", "only experts in every layer"}},
      {"qwen2_moe", {"use_sliding_window", "true", "\"use_sliding_window\" is true"}},
      {"qwen2_moe", {"num_experts", "0", "\"num_experts\" is 0"}},
      {"qwen2_moe", {"num_experts", "100000", "experts.count"}},
      {"qwen2_moe", {"num_experts", "3", "has shape [4,32], expected [3,32]"}},
      {"qwen2_moe", {"num_experts_per_tok", "5", "experts.active is 5"}},
      {"qwen2_moe", {"qkv_bias", "false", "\"qkv_bias\" is false"}},
      {"qwen2_moe", {"shared_expert_intermediate_size", NULL, "\"shared_expert_intermediate_size\" is"}},
      {"qwen2_moe", {"moe_intermediate_size", "32", "has shape [64,32], expected [32,32]"}},
      {"gemma2", {"hidden_activation", "\"silu\"", "gelu_pytorch_tanh is known"}},
      {"gemma2", {"query_pre_attn_scalar", "0", "\"query_pre_attn_scalar\" is 0"}},
      {"gemma2", {"query_pre_attn_scalar", "\"256\"", "\"query_pre_attn_scalar\" is not a number"}},
      {"gemma2", {"attention_bias", "true", "\"attention_bias\" is true"}},
      {"gemma2", {"use_bidirectional_attention", "true", "\"use_bidirectional_attention\" is true"}},
      {"gemma2", {"sliding_window", "0", "\"sliding_window\" is 0"}},
      {"gemma2", {"attn_logit_softcapping", "-3", "softcap"}},
      {"gemma2", {"final_logit_softcapping", "-3", "logit_softcap"}},
      {"gemma2", {"num_key_value_heads", NULL, "\"num_key_value_heads\" is missing"}},
      {"gemma3", {"attn_logit_softcapping", "3", "soft-capped logits"}},
      {"gemma3", {"sliding_window", "-1", "\"sliding_window\" is not a whole number"}},
      {"gemma3", {"rope_parameters", "{\"rope_theta\": 10000}", "no objects full_attention"}},
      {"gemma3",
       {"rope_parameters",
        "{\"full_attention\": {}, \"sliding_attention\": {\"rope_type\": \"linear\", \"factor\": 2}}",
        "sliding_attention is of type"}},
      {"gemma3", {"rope_scaling", "{\"rope_type\": \"longrope\"}", "\"longrope\""}},
      {"gpt2", {"activation_function", "\"silu\"", "gelu_new"}},
      {"gpt2", {"scale_attn_by_inverse_layer_idx", "true", "scale_attn_by_inverse_layer_idx"}},
      {"gpt2", {"add_cross_attention", "true", "add_cross_attention"}},
      {"gpt2", {"n_positions", "31", "has shape"}},
      {"gpt2", {"n_inner", "-4", "n_inner"}},
      {"gpt2", {"n_head", "7", "heads"}},
      {"granite", {"residual_multiplier", "0", "all must be above 0"}},
      {"granite", {"embedding_multiplier", "-2", "all must be above 0"}},
      {"granite", {"logits_scaling", "\"8\"", "\"logits_scaling\" is not a number"}},
      {"granite", {"attention_multiplier", "1e300", "attention.scale"}},
      {"granite", {"attention_bias", "false", "biases on all projections, on those of attention or on none"}},
      {"granite", {"mlp_bias", "false", "bias is not part of the model"}},
      {"olmo2", {"attention_bias", "true", "\"attention_bias\" is true"}},
      {"olmo2", {"num_attention_heads", "8", "has shape"}},
      {"phi3", {"original_max_position_embeddings", "0", "from 2 to 32768; it is 0"}},
      {"phi3", {"original_max_position_embeddings", "50000", "it is 50000"}},
      {"phi3", {"rope_parameters", "3", "\"rope_parameters\" is not an object"}},
      {"phi3", {"rope_parameters", "{\"rope_type\": \"linear\", \"factor\": 2}", "default and longrope are known"}},
      {"phi3", {"rope_parameters", "{\"rope_type\": \"longrope\"}", "\"short_factor\" is missing"}},
      {"phi3", {"rope_parameters", "{\"type\": \"su\", \"short_factor\": [1, 1], \"long_factor\": [1]}", "has shape"}},
      {"phi3",
       {"rope_parameters", "{\"type\": \"su\", \"short_factor\": [1, -1], \"long_factor\": [1, 1]}",
        "\"short_factor\"[1] is no number above 0"}},
      {"phi3",
       {"rope_parameters", "{\"type\": \"su\", \"short_factor\": [1, 1], \"long_factor\": [1, \"2\"]}",
        "\"long_factor\"[1] is no number above 0"}},
      {"phi3", {"rope_parameters", "{\"partial_rotary_factor\": 0}", "\"partial_rotary_factor\" is 0"}},
      {"phi3", {"sliding_window", "\"7\"", "sliding_window"}},
      {"mistral", {"sliding_window", "-7", "sliding_window"}},
      {"mistral", {"sliding_window", "99999999999999", "attention.window"}},
      {"mistral", {"num_key_value_heads", NULL, "\"num_key_value_heads\" is missing"}},
      {"qwen2", {"layer_types", "[\"full_attention\"]", "\"layer_types\" is not a list of 2"}},
      {"qwen2", {"layer_types", "[\"full_attention\", \"linear_attention\"]", "linear_attention"}},
      {"qwen2", {"layer_types", "[\"full_attention\", 3]", "no string"}},
  };
  char path[1024];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    copy_golden(cases[i].model, "config.json", folder);
    copy_golden(cases[i].model, "model.safetensors", folder);
    change_config(folder, &cases[i].c);
    refused(cases[i].c.key, folder, cases[i].c.expected);
  }
  place_in(path, folder, "model.safetensors");
  remove(path);
}

/* ---- safetensors ---- */

struct change {
  const char *what, *from, *to; /* in the header; both of the same length */
  const char *expected;
};

static void safetensors_files(void **state) {
  (void)state;
  static const struct change changes[] = {
      {"a dtype of whole numbers", "\"dtype\":\"F32\",\"shape\":[48,32]", "\"dtype\":\"I32\",\"shape\":[48,32]", "I32"},
      {"a dtype that is not known", "\"dtype\":\"F32\",\"shape\":[48,32]", "\"dtype\":\"F33\",\"shape\":[48,32]",
       "F33"},
      {"another shape", "\"shape\":[48,32]", "\"shape\":[32,48]", "has shape"},
      {"a shape that overflows", "\"shape\":[48,32]", "\"shape\":[4e9,2]", "shape"},
      {"another name", "model.norm.weight", "model.norn.weight", "is missing"},
      {"a header that is no JSON", "\"dtype\":", "\"dtype\"!", "header"},
      {"an offset into another tensor", "\"data_offsets\":[", "\"data_offsets\":[1", "data_offsets"},
  };
  char path[1024], *data;
  copy_golden("llama", "config.json", folder);
  copy_golden("llama", "model.safetensors", folder);
  place_in(path, folder, "model.safetensors");
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  fseek(f, 0, SEEK_END);
  const size_t n = (size_t)ftell(f);
  rewind(f);
  data = malloc(n);
  char *good = malloc(n);
  assert_int_equal(fread(good, 1, n, f), n);
  fclose(f);
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
    memcpy(data, good, n);
    char *at = memmem(data, n, changes[i].from, strlen(changes[i].from));
    if (!at) fail_msg("%s: the golden has no %s", changes[i].what, changes[i].from);
    memcpy(at, changes[i].to, strlen(changes[i].to));
    put_file(path, data, n);
    refused(changes[i].what, folder, changes[i].expected);
  }
  const uint64_t lengths[] = {UINT64_MAX, n, 0, 1};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    memcpy(data, good, n);
    memcpy(data, &lengths[i], sizeof *lengths);
    put_file(path, data, n);
    refused("a header of another length", folder, "header");
  }
  const size_t cuts[] = {0, 7, 100, n / 2, n - 1};
  for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
    put_file(path, good, cuts[i]);
    refused("cut", folder, "model.safetensors");
  }
  memcpy(data, good, n);
  memcpy(data + n - 4, &(float){INFINITY}, 4);
  put_file(path, data, n);
  refused("an infinite weight", folder, "not finite");
  free(data);
  free(good);
  remove(path);
  refused("no weights", folder, "model.safetensors");
}

/* ---- an index of shards ---- */

static void indexes(void **state) {
  (void)state;
  static const struct {
    const char *what, *text, *expected;
  } cases[] = {
      {"no JSON", "{", "index.json:1"},
      {"no map", "{\"metadata\":{}}", "weight_map"},
      {"an empty map", "{\"weight_map\":{}}", "weight_map"},
      {"a list", "{\"weight_map\":[]}", "weight_map"},
      {"a number", "{\"weight_map\":{\"a\":3}}", "no string"},
      {"out of the folder", "{\"weight_map\":{\"a\":\"../model-00001-of-00004.safetensors\"}}", "same folder"},
      {"an absolute path", "{\"weight_map\":{\"a\":\"/etc/model.safetensors\"}}", "same folder"},
      {"a folder below", "{\"weight_map\":{\"a\":\"x/model.safetensors\"}}", "same folder"},
      {"another kind of file", "{\"weight_map\":{\"a\":\"config.json\"}}", "same folder"},
      {"no name", "{\"weight_map\":{\"a\":\"\"}}", "same folder"},
      {"a shard that is not there", "{\"weight_map\":{\"a\":\"model-00009-of-00009.safetensors\"}}",
       "model-00009-of-00009.safetensors"},
      {"a tensor that is not there", "{\"weight_map\":{\"a\":\"model-00001-of-00004.safetensors\"}}",
       "does not have it"},
  };
  char dir[1024], name[64], path[1024];
  place_in(dir, folder, "sharded");
  assert_int_equal(mkdir(dir, 0700), 0);
  copy_golden("qwen3", "config.json", dir);
  for (int i = 1; i <= 4; i++) {
    snprintf(name, sizeof name, "model-%05d-of-00004.safetensors", i);
    copy_golden("qwen3", name, dir);
  }
  copy_golden("qwen3", "model.safetensors.index.json", dir);
  wn_model *model;
  assert_ok(ctx, wn_model_load(ctx, dir, NULL, &model));
  wn_model_destroy(model);
  /* A tensor moved to another shard, and a tensor missing from the index. */
  place_in(path, dir, "model.safetensors.index.json");
  json_t *index = json_load_file(path, 0, NULL), *map = json_object_get(index, "weight_map");
  json_t *was = json_incref(json_object_get(map, "model.norm.weight"));
  assert_non_null(was);
  json_object_set_new(map, "model.norm.weight", json_string("model-00001-of-00004.safetensors"));
  json_dump_file(index, path, 0);
  refused("a tensor in another shard", dir, "does not have it");
  json_object_del(map, "model.norm.weight");
  json_dump_file(index, path, 0);
  refused("a tensor that the index leaves out", dir, "is not in the index");
  json_decref(was);
  json_decref(index);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    put_text_file(dir, "model.safetensors.index.json", cases[i].text);
    refused(cases[i].what, dir, cases[i].expected);
  }
  copy_golden("qwen3", "model.safetensors.index.json", dir);
  place_in(path, dir, "model-00003-of-00004.safetensors");
  remove(path);
  refused("a missing shard", dir, "model-00003-of-00004.safetensors");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gguf_files),    cmocka_unit_test(gguf_bytes),        cmocka_unit_test(hf_configs),
      cmocka_unit_test(other_configs), cmocka_unit_test(safetensors_files), cmocka_unit_test(indexes),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
