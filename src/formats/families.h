/* Families of models: what winnow knows of each, one row in families.c and one file in families/. The row says what the
 * family is called in Hugging Face's config.json and in GGUF, reads and writes the configuration there, names the
 * tensors, and says what of a configuration it can express. Reading (import*.c) and writing (export*.c) walk the rows
 * and know no family's name. To add one: a file with its row, and its line in families.c. */
#ifndef WN_FORMATS_FAMILIES_H
#define WN_FORMATS_FAMILIES_H

#include "formats/config_set.h"
#include "formats/gguf_keys.h"
#include "formats/hf_keys.h"
#include "formats/names.h"

enum wn_model_form { WN_FORM_WINNOW, WN_FORM_HF, WN_FORM_GGUF };

struct wn_family {
  struct {
    const char *model_type; /* in config.json; NULL: the family is not there */
    const char *class_name; /* written to "architectures" */
    const struct wn_names *names;
    const char *const *keys; /* of those that wn_hf_refuse refuses, the ones read here; NULL-terminated, or NULL */
    wn_status (*read)(const struct wn_hf_keys *keys, wn_model_config *config);
    void (*write)(struct wn_hf_object *object, const wn_model_config *config);
  } hf;
  struct {
    const char *architecture; /* general.architecture; NULL: the family has none of its own */
    const struct wn_names *names;
    const char *const *keys; /* read here beyond those that every architecture may have; NULL-terminated, or NULL */
    wn_rope_pairs pairs;     /* as rows of q and k lie there */
    bool factors;            /* llama.cpp reads rope_freqs.weight, as which Llama 3's scaling is written */
    /* After wn_gguf_keys_sizes, before rope pairs. */
    wn_status (*read)(const struct wn_gguf_keys *keys, wn_model_config *config);
    void (*write)(const struct wn_gguf_out *out, const wn_model_config *config); /* after wn_gguf_out_sizes */
  } gguf;
  /* Is a configuration of the family's kind, so that it would be written as this one? The first row that says so has
   * it. */
  bool (*is)(const wn_model_config *config, enum wn_model_form form);
  /* What it can express: keys of our config.json beyond the sizes and what concerns training alone, and mechanisms of
   * attention; both NULL-terminated. Anything else that is not at its default is refused by name. */
  const char *const *keys, *const *mechanisms;
  /* Of those, the obstacle to writing this model all the same, as words for the message; NULL: none. */
  const char *(*lacks)(const wn_model_config *config, enum wn_model_form form);
};

/* By the name that a file gives; NULL: not known. */
const struct wn_family *wn_family_find(enum wn_model_form form, const char *name);
/* The one that a configuration would be written as; NULL: none. */
const struct wn_family *wn_family_of(const wn_model_config *config, enum wn_model_form form);
/* Its name there. */
const char *wn_family_name(const struct wn_family *family, enum wn_model_form form);
const struct wn_names *wn_family_names(const struct wn_family *family, enum wn_model_form form);
/* "gpt2, llama and qwen2" of all that the form has; `last` (or NULL) is one more at the end. */
void wn_family_list(enum wn_model_form form, const char *last, char *out, size_t bytes);

#endif
