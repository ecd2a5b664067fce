/* Reading models of winnow and of other programs. Private to src/formats.
 *
 * Read are folders of Hugging Face transformers (config.json, safetensors) and GGUF files. The family that they name
 * gives winnow's configuration (import_config.c) and the names of tensors (names.h). import.c checks every tensor and
 * makes the model. */
#ifndef WN_FORMATS_IMPORT_H
#define WN_FORMATS_IMPORT_H

#include <jansson.h>
#include "io/tensors.h"
#include "formats/families.h"

/* The architecture's name of winnow's own models. */
#define WN_OWN_ARCHITECTURE "winnow"

struct wn_adapter;

struct wn_import {
  enum wn_model_form form;
  char where[4096];               /* the file that the configuration comes from, for messages */
  const struct wn_family *family; /* NULL: winnow's own */
  const char *architecture;       /* as the file names it: "llama", "qwen2", ..., WN_OWN_ARCHITECTURE */
  wn_model_config config;
  const struct wn_names *names;
  const char *prefix; /* the naming's prefix, or "" if the file leaves it out */
  struct wn_tensors *tensors;
  int64_t bos, eos; /* the source's token ids; -1: it gives none */
  wn_declared declared;
  bool unchecked;                   /* accept values that are not finite */
  const struct wn_adapter *adapter; /* the model is made with this adapter's updates (adapter.h); borrowed, or NULL */
};

/* Opens a folder or file of any form. The configuration is resolved, no tensor is checked. To be cleared also after a
 * failure. */
wn_status wn_import_open(wn_context *ctx, const char *path, struct wn_import *out);
/* The same for a GGUF file in a buffer of the caller. */
wn_status wn_import_open_gguf_memory(wn_context *ctx, const char *name, const void *data, size_t bytes,
                                     struct wn_import *out);
void wn_import_clear(struct wn_import *import);
/* Checks that the tensors are exactly those that the configuration implies, with their shapes and readable types. */
wn_status wn_import_check(wn_context *ctx, const struct wn_import *import);
/* Checks that no weight is NaN or infinite; reads all of them. */
wn_status wn_import_check_values(wn_context *ctx, const struct wn_import *import);
/* Makes the model. as_float: all weights are copied to float32; else matrices of fewer bits are used in the mapped
 * file, and the model takes over the open files (import->tensors is NULL then). */
wn_status wn_import_model(wn_context *ctx, struct wn_import *import, bool as_float, wn_weights weights,
                          struct wn_model **out);

/* The configuration from transformers' config.json; or from a GGUF file's metadata and tensors. *family NULL: winnow's
 * own. */
wn_status wn_import_hf_config(wn_context *ctx, const char *where, const json_t *object, const struct wn_family **family,
                              wn_model_config *out);
wn_status wn_import_gguf_config(wn_context *ctx, const char *where, const struct wn_tensors *tensors,
                                const struct wn_family **family, wn_model_config *out);
/* Where the source has the values of a tensor of the configuration's table: its parts, in the source's order. For a
 * vector "rows" are elements. */
struct wn_import_row {
  const struct wn_tensor *tensor[3];
  struct wn_name_part parts[3];
  int count; /* number of parts; 0: the source has none */
  int64_t K; /* elements per row */
};
void wn_import_row(const struct wn_import *import, const struct wn_param *row, struct wn_import_row *out);

#endif
