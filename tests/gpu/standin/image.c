/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.c - parse images of kernels as far as drivers check them: a fat binary,
 * PTX as text, or none (a build without nvcc).
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <elf.h>
#include <limits.h>
#include <stdio.h>

#include "tests/gpu/standin/standin.h"

#define FATBIN_MAGIC 0xba55ed50u
#define KIND_PTX 1
#define KIND_ELF 2
/* flag: only drivers from 12.8 on can read the PTX */
#define PTX_ZSTD 0x8000u
#define ELF_OF_CUDA_13 8   /* version of the binary interface in the code */
#define ATTR_MAX_THREADS 5 /* numbers of attributes in the section .nv.info */
#define ATTR_FRAME 0x11
#define ATTR_REGISTERS 0x2f
#define WITH_PAYLOAD 4

struct fatbin {
	uint32_t magic;
	uint16_t version, header;
	uint64_t bytes; /* number of bytes that follow this header */
};

struct entry {
	uint16_t kind, version;
	uint32_t header;
	uint64_t bytes; /* number of bytes that follow this header */
	uint32_t compressed, options;
	uint16_t minor, major;
	uint32_t arch, name, name_bytes;
	uint64_t flags;
};

/* Return the version of the first driver that reads the text. */
static int version_of_text(const char *text)
{
	int major = 0, minor = 0;

	text = strstr(text, ".version ");
	if (text == NULL ||
	    sscanf(text, ".version %d.%d", &major, &minor) != 2 || major < 6)
		return INT_MAX;
	return major == 6 ? 10000 + 10 * (minor - 3)
			  : 1000 * (major + 4) + 10 * minor;
}

/* Return whether the driver is new enough for the entry.  Drivers before 13.0
 * cannot run code made for 13.0. */
static bool is_readable(const struct entry *entry)
{
	const char *content = (const char *)entry + entry->header;

	if (entry->kind == KIND_ELF)
		return content[EI_ABIVERSION] < ELF_OF_CUDA_13 ||
		       settings.version >= 13000;
	return (entry->flags & PTX_ZSTD) != 0
		       ? settings.version >= 12080
		       : settings.version >= version_of_text(content);
}

/* Return whether the device runs the entry: code runs on later GPUs of its
 * generation, PTX on all later GPUs. */
static bool is_for_us(const struct entry *entry)
{
	int arch = (int)entry->arch;

	if (entry->kind == KIND_ELF)
		return arch / 10 == settings.arch / 10 && arch <= settings.arch;
	return entry->kind == KIND_PTX && arch <= settings.arch;
}

/* Return the entry to use: code before PTX, newer before older. */
static const struct entry *entry_of(const struct fatbin *fatbin)
{
	const char *at = (const char *)fatbin + fatbin->header;
	const char *end = at + fatbin->bytes;
	const struct entry *entry, *best = NULL;

	for (; at < end; at += entry->header + entry->bytes) {
		entry = (const void *)at;
		if (is_for_us(entry) && is_readable(entry) &&
		    (best == NULL || entry->kind > best->kind ||
		     (entry->kind == best->kind && entry->arch > best->arch)))
			best = entry;
	}
	return best;
}

static bool is_fatbin(const void *image)
{
	uint32_t magic;

	memcpy(&magic, image, sizeof(magic));
	return magic == FATBIN_MAGIC;
}

CUresult image_check(const void *image)
{
	const char *target;

	if (is_fatbin(image))
		return entry_of(image) != NULL ? CU_OK : CU_NO_BINARY;
	if (*(const char *)image == '\0')
		return CU_OK;
	if (version_of_text(image) > settings.version)
		return CU_UNSUPPORTED_PTX;
	target = strstr(image, "\n.target sm_");
	if (target == NULL)
		return CU_INVALID_IMAGE;
	return atoi(target + strlen("\n.target sm_")) <= settings.arch
		       ? CU_OK
		       : CU_NO_BINARY;
}

static const Elf64_Shdr *section_of(const char *elf, const char *prefix,
				    const char *name)
{
	const Elf64_Ehdr *header = (const void *)elf;
	const Elf64_Shdr *all = (const void *)(elf + header->e_shoff), *s;
	const char *names = elf + all[header->e_shstrndx].sh_offset, *its;

	for (s = all; s < all + header->e_shnum; s++) {
		its = names + s->sh_name;
		if (strncmp(its, prefix, strlen(prefix)) == 0 &&
		    strcmp(its + strlen(prefix), name) == 0)
			return s;
	}
	return NULL;
}

/* Return the values of an attribute, of kernel @symbol unless it is 0. */
static const uint32_t *attribute_of(const char *elf, const Elf64_Shdr *info,
				    unsigned which, uint32_t symbol)
{
	const uint8_t *at, *end;
	uint16_t bytes;

	if (info == NULL)
		return NULL;
	at = (const uint8_t *)elf + info->sh_offset;
	for (end = at + info->sh_size; at + 4 <= end; at += bytes) {
		const uint32_t *numbers = (const void *)(at + 4);

		memcpy(&bytes, at + 2, sizeof(bytes));
		if (at[0] == WITH_PAYLOAD && at[1] == which &&
		    (symbol == 0 || numbers[0] == symbol))
			return numbers;
		bytes = at[0] == WITH_PAYLOAD ? (uint16_t)(bytes + 4) : 4;
	}
	return NULL;
}

void image_kernel(const void *image, const char *name, struct kernel *ret)
{
	const struct entry *entry = is_fatbin(image) ? entry_of(image) : NULL;
	const Elf64_Shdr *text, *all;
	const uint32_t *numbers;
	const char *elf;

	*ret = (struct kernel){.max_threads = 1024};
	if (entry == NULL || entry->kind != KIND_ELF)
		return;
	elf = (const char *)entry + entry->header;
	text = section_of(elf, ".text.", name);
	if (text == NULL)
		return;
	numbers = attribute_of(elf, section_of(elf, ".nv.info.", name),
			       ATTR_MAX_THREADS, 0);
	if (numbers != NULL)
		ret->max_threads = numbers[0] * numbers[1] * numbers[2];
	all = section_of(elf, "", ".nv.info");
	numbers = attribute_of(elf, all, ATTR_FRAME, text->sh_info & 0xffffff);
	if (numbers != NULL)
		ret->local = numbers[1];
	numbers = attribute_of(elf, all, ATTR_REGISTERS,
			       text->sh_info & 0xffffff);
	if (numbers != NULL)
		ret->registers = numbers[1];
}
