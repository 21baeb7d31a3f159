# One step of one service: bash scripts/services/step.sh SERVICE up|down|status
source scripts/services/common.sh
service=$1
source "scripts/services/$service.sh"
"$2"
