/* generate MODEL PROMPT: continues a prompt with a checkpoint, a Hugging Face folder or a GGUF file. */
#include <stdio.h>
#include <string.h>
#include <winnow/winnow.h>

static bool print(void *out, const wn_generate_piece *piece) { /* once per token; false ends the text */
  return fwrite(piece->text, 1, piece->bytes, out) == piece->bytes && !fflush(out);
}

int main(int argc, char **argv) {
  if (argc != 3) return fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]), 2;
  wn_context *ctx = NULL;
  wn_model *model = NULL;
  wn_tokenizer *tok = NULL;
  wn_status status = wn_context_create(NULL, &ctx); /* every call returns a status; wn_context_error(ctx) says why */
  if (status == WN_OK) status = wn_model_load(ctx, argv[1], NULL, &model);
  if (status == WN_OK) status = wn_tokenizer_load(ctx, argv[1], &tok);
  if (status == WN_OK) {
    wn_generate_options options;
    wn_generate_options_init(&options, sizeof options);
    options.tok = tok;
    options.text = argv[2], options.bytes = strlen(argv[2]);
    options.max_tokens = 100;
    options.piece = print, options.user = stdout;
    status = wn_generate(ctx, model, &options, NULL);
    putchar('\n');
  }
  if (status != WN_OK) fprintf(stderr, "%s\n", wn_context_error(ctx));
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
  return status == WN_OK ? 0 : 1;
}
