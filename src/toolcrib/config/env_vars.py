"""The variables that tools can use, as data for the set-up wizard; tool files and plugins add theirs to it."""

from typing import Any

SHOWN_CHARS = 4
# From here on the last characters say too little about a value to matter.
MIN_CHARS_TO_SHOW = 12

OPTIONAL_ENV_VARS: dict[str, dict[str, Any]] = {
    "OPENAI_API_KEY": {
        "description": "Talk to models of OpenAI, or of any server that speaks its protocol",
        "prompt": "OpenAI API key",
        "url": "https://platform.openai.com/api-keys",
        "tools": ["text_to_speech"],
        "password": True,
    },
    "ANTHROPIC_API_KEY": {
        "description": "Talk to Claude models",
        "prompt": "Anthropic API key",
        "url": "https://console.anthropic.com/settings/keys",
        "tools": [],
        "password": True,
    },
    "OPENROUTER_API_KEY": {
        "description": "Talk to models of many makers through one account",
        "prompt": "OpenRouter API key",
        "url": "https://openrouter.ai/keys",
        "tools": ["mixture_of_agents", "vision_analyze"],
        "password": True,
    },
    "EXA_API_KEY": {
        "description": "Search and read the web with Exa",
        "prompt": "Exa API key",
        "url": "https://dashboard.exa.ai/api-keys",
        "tools": ["web_search", "web_extract"],
        "password": True,
    },
    "PARALLEL_API_KEY": {
        "description": "Search and read the web with Parallel",
        "prompt": "Parallel API key",
        "url": "https://platform.parallel.ai/",
        "tools": ["web_search", "web_extract"],
        "password": True,
    },
    "TAVILY_API_KEY": {
        "description": "Search and read the web with Tavily",
        "prompt": "Tavily API key",
        "url": "https://app.tavily.com/home",
        "tools": ["web_search", "web_extract"],
        "password": True,
    },
    "FIRECRAWL_API_KEY": {
        "description": "Search and read the web with Firecrawl",
        "prompt": "Firecrawl API key",
        "url": "https://www.firecrawl.dev/app/api-keys",
        "tools": ["web_search", "web_extract"],
        "password": True,
    },
    "FIRECRAWL_API_URL": {
        "description": "Use a Firecrawl server of your own",
        "prompt": "Address of your Firecrawl server (empty for the hosted one)",
        "url": "https://docs.firecrawl.dev/contributing/self-host",
        "tools": ["web_search", "web_extract"],
        "password": False,
    },
    "FAL_KEY": {
        "description": "Make images with models on fal.ai",
        "prompt": "fal.ai key",
        "url": "https://fal.ai/dashboard/keys",
        "tools": ["image_generate"],
        "password": True,
    },
    "XAI_API_KEY": {
        "description": "Search posts on X and make videos with xAI",
        "prompt": "xAI API key",
        "url": "https://console.x.ai/",
        "tools": ["x_search", "xai_video_edit", "xai_video_extend"],
        "password": True,
    },
    "ELEVENLABS_API_KEY": {
        "description": "Speak with ElevenLabs voices",
        "prompt": "ElevenLabs API key",
        "url": "https://elevenlabs.io/app/settings/api-keys",
        "tools": ["text_to_speech"],
        "password": True,
    },
    "BROWSERBASE_API_KEY": {
        "description": "Drive a browser in the cloud with Browserbase",
        "prompt": "Browserbase API key",
        "url": "https://www.browserbase.com/settings",
        "tools": ["browser_navigate"],
        "password": True,
    },
    "BROWSERBASE_PROJECT_ID": {
        "description": "The Browserbase project that cloud browsers belong to",
        "prompt": "Browserbase project id",
        "url": "https://www.browserbase.com/settings",
        "tools": ["browser_navigate"],
        "password": False,
    },
    "HASS_TOKEN": {
        "description": "Let the agent see and switch what Home Assistant manages",
        "prompt": "Home Assistant long-lived access token",
        "url": "https://www.home-assistant.io/docs/authentication/",
        "tools": ["ha_list_entities", "ha_get_state", "ha_list_services", "ha_call_service"],
        "password": True,
    },
    "HASS_URL": {
        "description": "Where your Home Assistant answers",
        "prompt": "Address of Home Assistant, for example http://homeassistant.local:8123",
        "url": "https://www.home-assistant.io/docs/configuration/basic/",
        "tools": ["ha_list_entities", "ha_get_state", "ha_list_services", "ha_call_service"],
        "password": False,
    },
    "DISCORD_BOT_TOKEN": {
        "description": "Read and manage Discord servers as your bot",
        "prompt": "Discord bot token",
        "url": "https://discord.com/developers/applications",
        "tools": ["discord", "discord_admin"],
        "password": True,
    },
    "TELEGRAM_BOT_TOKEN": {
        "description": "Send and receive Telegram messages as your bot",
        "prompt": "Telegram bot token",
        "url": "https://core.telegram.org/bots#how-do-i-create-a-bot",
        "tools": ["send_message"],
        "password": True,
    },
    "SLACK_BOT_TOKEN": {
        "description": "Send and receive Slack messages as your bot",
        "prompt": "Slack bot token (starts with xoxb-)",
        "url": "https://api.slack.com/apps",
        "tools": ["send_message"],
        "password": True,
    },
    "FEISHU_APP_ID": {
        "description": "Read Feishu documents and comments: the id of your app",
        "prompt": "Feishu app id",
        "url": "https://open.feishu.cn/app",
        "tools": ["feishu_doc_read", "feishu_drive_list_comments"],
        "password": False,
    },
    "FEISHU_APP_SECRET": {
        "description": "Read Feishu documents and comments: the secret of your app",
        "prompt": "Feishu app secret",
        "url": "https://open.feishu.cn/app",
        "tools": ["feishu_doc_read", "feishu_drive_list_comments"],
        "password": True,
    },
    "SPOTIFY_CLIENT_ID": {
        "description": "Control Spotify through an app of your own",
        "prompt": "Spotify client id",
        "url": "https://developer.spotify.com/dashboard",
        "tools": ["spotify_playback", "spotify_search"],
        "password": False,
    },
    "TERMINAL_SSH_HOST": {
        "description": "The machine that the ssh terminal backend logs in to",
        "prompt": "Host name or address",
        "url": "https://man.openbsd.org/ssh",
        "tools": ["terminal"],
        "password": False,
    },
    "TERMINAL_SSH_USER": {
        "description": "The user that the ssh terminal backend logs in as",
        "prompt": "User name on that machine",
        "url": "https://man.openbsd.org/ssh",
        "tools": ["terminal"],
        "password": False,
    },
    "DAYTONA_API_KEY": {
        "description": "Run terminal commands in Daytona sandboxes",
        "prompt": "Daytona API key",
        "url": "https://app.daytona.io/dashboard/keys",
        "tools": ["terminal"],
        "password": True,
    },
    "MODAL_TOKEN_ID": {
        "description": "Run terminal commands in Modal sandboxes: the id of your token",
        "prompt": "Modal token id",
        "url": "https://modal.com/settings/tokens",
        "tools": ["terminal"],
        "password": True,
    },
    "MODAL_TOKEN_SECRET": {
        "description": "Run terminal commands in Modal sandboxes: the secret of your token",
        "prompt": "Modal token secret",
        "url": "https://modal.com/settings/tokens",
        "tools": ["terminal"],
        "password": True,
    },
    "VERCEL_TOKEN": {
        "description": "Run terminal commands in Vercel sandboxes",
        "prompt": "Vercel access token",
        "url": "https://vercel.com/account/settings/tokens",
        "tools": ["terminal"],
        "password": True,
    },
    "VERCEL_TEAM_ID": {
        "description": "The Vercel team that sandboxes belong to",
        "prompt": "Vercel team id",
        "url": "https://vercel.com/docs/accounts#find-your-team-id",
        "tools": ["terminal"],
        "password": False,
    },
    "VERCEL_PROJECT_ID": {
        "description": "The Vercel project that sandboxes belong to",
        "prompt": "Vercel project id",
        "url": "https://vercel.com/docs/projects/overview#project-id",
        "tools": ["terminal"],
        "password": False,
    },
    "TINKER_API_KEY": {
        "description": "Train models with Tinker",
        "prompt": "Tinker API key",
        "url": "https://tinker-console.thinkingmachines.ai/",
        "tools": ["rl_start_training"],
        "password": True,
    },
    "WANDB_API_KEY": {
        "description": "Follow training runs on Weights & Biases",
        "prompt": "Weights & Biases API key",
        "url": "https://wandb.ai/authorize",
        "tools": ["rl_start_training"],
        "password": True,
    },
}


def mask(value: str) -> str:
    """A secret as it may be shown: at most its last four characters, and nothing of a short one."""
    return "****" + (value[-SHOWN_CHARS:] if len(value) >= MIN_CHARS_TO_SHOW else "")
