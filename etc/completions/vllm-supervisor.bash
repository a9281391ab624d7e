# made by etc/completions/generate.py from the parsers of vllm-supervisor; `make completions` writes it anew

_vllm_supervisor() {
    local words=() word before command at=1
    # readline also splits at the = of --set KEY=VALUE: what stands before the cursor is looked at instead.
    read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
    [[ ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && words+=("")
    word=${words[-1]}
    before=${words[-2]-}
    while ((at < ${#words[@]} - 1)); do
        case ${words[at]} in
            -c|--config|--set|--socket|--instance) ((at += 2)) ;;
            -*) ((at += 1)) ;;
            *) command=${words[at]}; break ;;
        esac
    done
    COMPREPLY=()
    case "${command-} $before" in
        *" -c"|*" --config") mapfile -t COMPREPLY < <(compgen -f -- "$word"); compopt -o filenames 2>/dev/null; return ;;
        *" --set") mapfile -t COMPREPLY < <(compgen -W "engine.available= engine.vllm.launcher= engine.vllm.model= engine.vllm.host= engine.vllm.port= engine.vllm.extra_args= engine.vllm.env= engine.vllm.cwd= engine.vllm.model_aliases= engine.vllm.health_path= engine.vllm.log_file= engine.vllm.log.max_bytes= engine.vllm.log.keep= engine.vllm.concurrency= engine.vllm.api_key= engine.vllm.timeout= engine.vllm.restart.enabled= engine.vllm.restart.min_backoff= engine.vllm.restart.max_backoff= engine.vllm.restart.healthy_reset= engine.vllm.restart.never_ready_limit= engine.vllm.restart.retry_failed_every= engine.vllm.restart.exit_when_failed= engine.vllm.startup.stall_timeout= engine.vllm.startup.timeout= engine.vllm.startup.warmup= engine.vllm.probe.interval= engine.vllm.probe.timeout= engine.vllm.probe.failure_threshold= engine.vllm.probe.restart_after= engine.vllm.liveness.mode= engine.vllm.liveness.interval= engine.vllm.liveness.timeout= engine.vllm.stop.drain_timeout= engine.vllm.stop.grace= resources.max_concurrent_jobs= control.socket= control.mode= control.group= control.admins= metrics.enabled= metrics.host= metrics.port= logging.level= logging.format= systemd.ready_when= state_dir=" -- "$word"); compopt -o nospace 2>/dev/null; return ;;
        *" --socket") mapfile -t COMPREPLY < <(compgen -f -- "$word"); compopt -o filenames 2>/dev/null; return ;;
        *" --instance") :; return ;;
        wait" --for") mapfile -t COMPREPLY < <(compgen -W "stopped starting ready unhealthy stopping backoff failed" -- "$word"); return ;;
        wait" --timeout") :; return ;;
        start" --reason") :; return ;;
        start" --timeout") :; return ;;
        stop" --reason") :; return ;;
        stop" --timeout") :; return ;;
        restart" --reason") :; return ;;
        restart" --timeout") :; return ;;
        reload" --reason") :; return ;;
        reload" --timeout") :; return ;;
        logs" -n"|logs" --lines") :; return ;;
        diagnose" --exit-code") :; return ;;
        doctor" --unit") :; return ;;
        size" --gpu-memory") :; return ;;
        size" --gpus") :; return ;;
        size" -tp"|size" --tensor-parallel-size") :; return ;;
        size" -pp"|size" --pipeline-parallel-size") :; return ;;
        size" -dp"|size" --data-parallel-size") :; return ;;
        size" --gpu-memory-utilization") :; return ;;
        size" --max-model-len") :; return ;;
        size" --kv-cache-dtype") :; return ;;
        size" -q"|size" --quantization") :; return ;;
        size" --dtype") :; return ;;
        size" --kv-cache-memory-bytes") :; return ;;
        size" --block-size") :; return ;;
        size" --max-num-batched-tokens") :; return ;;
        size" --max-num-seqs") :; return ;;
        size" --vllm-version") :; return ;;
        size" --context") :; return ;;
        size" --output") :; return ;;
        size" --like") :; return ;;
        install-vllm" --version") :; return ;;
        install-vllm" --into") mapfile -t COMPREPLY < <(compgen -d -- "$word"); compopt -o filenames 2>/dev/null; return ;;
        advise" --window") :; return ;;
        advise" --concurrency") :; return ;;
        advise" --log") mapfile -t COMPREPLY < <(compgen -f -- "$word"); compopt -o filenames 2>/dev/null; return ;;
        advise" --prompt-tokens") :; return ;;
        advise" --output-tokens") :; return ;;
        advise" --max-concurrency") :; return ;;
        advise" --max-requests") :; return ;;
        advise" --max-seconds") :; return ;;
        advise" --step-seconds") :; return ;;
        advise" --csv") mapfile -t COMPREPLY < <(compgen -f -- "$word"); compopt -o filenames 2>/dev/null; return ;;
    esac
    case "${command-}" in
        "") mapfile -t COMPREPLY < <(compgen -W "run check status wait start stop restart reload logs events diagnose explain doctor size install-vllm advise simulate -h --help -c --config --set --socket --instance --json" -- "$word") ;;
        run) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version" -- "$word") ;;
        check) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version --against-running" -- "$word"); [[ $word == -* ]] || { mapfile -t COMPREPLY < <(compgen -f -- "$word"); compopt -o filenames 2>/dev/null; } ;;
        status) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version --check" -- "$word") ;;
        wait) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version --for --timeout" -- "$word") ;;
        start) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version --reason --no-drain --no-wait --timeout" -- "$word") ;;
        stop) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version --reason --no-drain --no-wait --timeout" -- "$word") ;;
        restart) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version --reason --no-drain --no-wait --timeout" -- "$word") ;;
        reload) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version --reason --no-drain --no-wait --timeout --restart-engine --dry-run" -- "$word") ;;
        logs) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version -n --lines -f --follow" -- "$word") ;;
        events) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version -f --follow" -- "$word") ;;
        diagnose) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version --exit-code" -- "$word"); [[ $word == -* ]] || { mapfile -t COMPREPLY < <(compgen -f -- "$word"); compopt -o filenames 2>/dev/null; } ;;
        explain) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version" -- "$word"); [[ $word == -* ]] || { mapfile -t COMPREPLY < <(compgen -W "bad_cli_argument capability_unsupported cuda_driver_mismatch cuda_driver_too_old cuda_runtime_mismatch disk_full ecc_error engine_core_died engine_core_init_failed execute_model_timeout exit_0_on_engine_death flashinfer_jit gpu_fault gpu_memory_not_free hang_health_ok health_flapping hf_401_gated hf_offline hf_rate_limit host_oom_kill illegal_instruction illegal_memory_access import_error killed_by_probe kv_cache_too_small lora_rank_error max_model_len_error model_not_found nccl_error nccl_timeout no_gpu_visible no_kernel_image oom_at_load oom_runtime orphan_gpu_processes permission_denied port_in_use quantization_mismatch ray_not_ready readiness_gap segfault shm_too_small sigterm_lost_in_startup slow_shutdown startup_hang startup_slow startup_timeout tensor_parallel_divisibility torch_compile_failure transformers_mismatch trust_remote_code unsupported_architecture weights_corrupt worker_died zmq_ipc_error" -- "$word"); } ;;
        doctor) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version --unit" -- "$word") ;;
        size) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version --gpu-memory --gpus -tp --tensor-parallel-size -pp --pipeline-parallel-size -dp --data-parallel-size --gpu-memory-utilization --max-model-len --kv-cache-dtype -q --quantization --dtype --kv-cache-memory-bytes --block-size --max-num-batched-tokens --max-num-seqs --enforce-eager --vllm-version --context --output --like" -- "$word"); [[ $word == -* ]] || { :; } ;;
        install-vllm) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version --into --dry-run" -- "$word") ;;
        advise) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json --version --window --concurrency --log --watch --load --prompt-tokens --output-tokens --max-concurrency --max-requests --max-seconds --step-seconds --with-traffic --csv" -- "$word") ;;
        simulate) mapfile -t COMPREPLY < <(compgen -W "-h --help -c --config --set --socket --instance --json" -- "$word"); [[ $word == -* ]] || { mapfile -t COMPREPLY < <(compgen -W "serve" -- "$word"); } ;;
    esac
}

complete -F _vllm_supervisor vllm-supervisor
