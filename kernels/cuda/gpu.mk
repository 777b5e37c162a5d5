# SPDX-License-Identifier: Apache-2.0
# The CUDA plug-in.  Its C part needs no CUDA and is always built, for the tests
# with the stand-in driver; the kernels, and with them the plug-in, need nvcc.
NVCC      := $(shell command -v nvcc || ls $(CUDA_HOME)/bin/nvcc /usr/local/cuda/bin/nvcc 2>/dev/null | head -n 1)
# Code for these and all later generations that nvcc knows; text for the others.
CUDA_KNOWN = $(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code))
CUDA_ARCH  = $(filter 75 80 86 89 90,$(CUDA_KNOWN)) $(filter 1%,$(CUDA_KNOWN))
CUDA_GEN   = $(foreach n,$(CUDA_ARCH),-gencode arch=compute_$n,code=sm_$n) \
             -gencode arch=compute_$(firstword $(CUDA_ARCH)),code=compute_$(firstword $(CUDA_ARCH))
# Older drivers can read the image; a kernel that spills registers does not build.
CUDA_FLAGS = -std=c++17 -O3 -I. --no-compress -Xptxas -warn-spills -Xptxas -warn-lmem-usage -Xptxas -Werror
CUDA      := $(wildcard kernels/cuda/*.c)
CUDA_OBJS  = $(call objs,$(CUDA) common/thread.c common/copy.c)
CUDA_MAP  := kernels/cuda/libkvfs-cuda.map
LINK_CUDA  = $(CC) $(LDFLAGS) -shared -Wl,-soname,libkvfs-cuda.so.1 -Wl,--version-script=$(CUDA_MAP) \
             $(filter %.o,$^) $(shell pkg-config --libs libxxhash)

all: $(if $(NVCC),$B/libkvfs-cuda.so,cuda-skipped)
cuda-skipped: ; @echo 'libkvfs-cuda.so: skipped, there is no nvcc'
$B/kernels/cuda/kernels.fatbin: kernels/cuda/kernels.cu kernels/cuda/abi.cu kernels/cuda/same.cuh kernels/device/scatter.h kernels/cuda/driver.h
	@mkdir -p $(@D)
	$(call run,NVCC)$(NVCC) -std=c++17 -I. -c kernels/cuda/abi.cu -o $(@D)/abi.o
	$(call run,NVCC)$(NVCC) $(CUDA_FLAGS) $(CUDA_GEN) -fatbin kernels/cuda/kernels.cu -o $@
# Text for drivers that are older than nvcc: in the oldest version of PTX that knows compute capability
# 7.5, without the hints of newer versions.  Assemble the text, because only a driver reads it otherwise.
$B/kernels/cuda/kernels.ptx: $B/kernels/cuda/kernels.fatbin
	$(call run,NVCC)$(NVCC) -std=c++17 -O3 -I. -arch=compute_75 -ptx kernels/cuda/kernels.cu -o $@.new
	@sed -i 's/^\.version .*/.version 6.3/;/used_bytes_mask/d' $@.new && mv $@.new $@
	$(call run,NVCC)$(NVCC) -Xptxas -warn-spills,-warn-lmem-usage,-Werror -arch=sm_75 -cubin $@ -o $(@D)/text.cubin
ifneq ($(NVCC),)
$B/kernels/cuda/gpu.o: $B/kernels/cuda/kernels.fatbin $B/kernels/cuda/kernels.ptx
$B/kernels/cuda/gpu.o: CFLAGS += -DKV_CUDA_IMAGE='"$B/kernels/cuda/kernels"'
endif
$B/libkvfs-cuda.so: $(CUDA_OBJS) $(CUDA_MAP)
	$(call run,LINK)$(LINK_CUDA) -o $@ && ln -sf libkvfs-cuda.so $B/libkvfs-cuda.so.1
$B/tests/gpu/libkvfs-cuda.so.1: $(CUDA_OBJS) $(CUDA_MAP) ; @mkdir -p $(@D)
	$(call run,LINK)$(LINK_CUDA) -Wl,-rpath,'$$ORIGIN' -o $@
$(filter $B/tests/gpu/%,$(UNIT)): | $B/tests/gpu/libkvfs-cuda.so.1
$B/tests/kernels/test_scatter: $B/kernels/cuda/plan.o
.PHONY: cuda-skipped
SOURCES  += $(CUDA)
